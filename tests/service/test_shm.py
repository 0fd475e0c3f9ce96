"""The region mapper on real descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry_server.adapters.shm import SharedMemoryMapper
from kvferry_server.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from kvferry_server.core.ports import SegmentSpec

from .harness import open_descriptors

MIB = 1 << 20
MAPPER = SharedMemoryMapper()


@pytest.fixture
def memfd() -> Iterator[int]:
    descriptor = os.memfd_create("kvferry-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4 * MIB)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def shm_file() -> Iterator[Path]:
    path = Path("/dev/shm") / f"kvferry_test_{uuid.uuid4().hex}"
    with path.open("xb") as file:
        file.truncate(4 * MIB)
    yield path
    path.unlink(missing_ok=True)


def attach(descriptor: int, slots: int = 4, slot_bytes: int = MIB, stride: int = MIB, offset=0):
    return MAPPER.attach([descriptor], [SegmentSpec(offset, slots)], slot_bytes, stride)


def test_slots_follow_stride_offset_and_segments(memfd: int):
    region = MAPPER.attach(
        [memfd, memfd], [SegmentSpec(0, 2), SegmentSpec(3 * MIB, 1)], MIB - 5, MIB
    )
    for slot, offset in ((0, 0), (1, MIB), (2, 3 * MIB)):
        view = region.slot(slot)
        view[:] = bytes([slot + 1]) * (MIB - 5)
        view.release()
        assert os.pread(memfd, MIB, offset) == bytes([slot + 1]) * (MIB - 5) + bytes(5)
    assert [each.start for each in region.ranges] == [0, 3 * MIB]
    assert region.mapped_bytes == 3 * MIB
    region.close()


def test_M07_attaching_touches_no_page(memfd: int):
    region = attach(memfd)
    assert os.fstat(memfd).st_blocks == 0
    region.close()
    assert os.fstat(memfd).st_blocks == 0


def test_M08_a_larger_file_is_fine_and_slots_come_from_count_and_stride(memfd: int):
    region = attach(memfd, slots=3)
    view = region.slot(2)
    view[:] = b"x" * MIB
    view.release()
    assert os.pread(memfd, 2, 2 * MIB) == b"xx"
    assert os.pread(memfd, 2, 3 * MIB) == b"\0\0"
    region.close()


def test_M01_an_unlinked_file_attaches_by_its_descriptor(shm_file: Path):
    descriptor = os.open(shm_file, os.O_RDWR)
    shm_file.unlink()
    region = attach(descriptor)
    view = region.slot(0)
    view[:3] = b"abc"
    view.release()
    assert os.pread(descriptor, 3, 0) == b"abc"
    region.close()
    os.close(descriptor)


def test_M05_a_failed_attach_leaves_the_file(shm_file: Path):
    descriptor = os.open(shm_file, os.O_RDWR)
    os.ftruncate(descriptor, 1 << 47)
    before = len(open_descriptors())
    with pytest.raises(ResourceExhausted, match="RLIMIT_AS"):
        attach(descriptor, slots=1 << 21, slot_bytes=1 << 26, stride=1 << 26)
    assert len(open_descriptors()) == before
    assert shm_file.stat().st_size == 1 << 47
    os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_M04_a_file_outlives_the_process_that_attached_it(shm_file: Path, number: int):
    script = (
        "import os, sys, time\n"
        "from kvferry_server.adapters.shm import SharedMemoryMapper\n"
        "from kvferry_server.core.ports import SegmentSpec\n"
        "fd = SharedMemoryMapper().open_by_name(sys.argv[1])\n"
        "region = SharedMemoryMapper().attach([fd], [SegmentSpec(0, 4)], 1 << 20, 1 << 20)\n"
        "region.slot(0)[:2] = b'ok'\n"
        "print('attached', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, shm_file.name], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        process.send_signal(number)
        process.wait(30)
    assert shm_file.stat().st_size == 4 * MIB
    assert shm_file.read_bytes()[:2] == b"ok"


def test_N03_attach_and_close_a_hundred_times_keeps_maps_and_descriptors_flat(memfd: int):
    def measure() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:kvferry-test")
        return maps, len(open_descriptors())

    before = measure()
    for _ in range(100):
        attach(memfd).close()
    assert measure() == before


def test_a_region_that_shrank_refuses_the_slots_that_are_gone(memfd: int):
    region = attach(memfd)
    os.ftruncate(memfd, 2 * MIB)
    region.slot(1).release()
    with pytest.raises(FailedPrecondition, match="truncated"):
        region.slot(2)
    region.close()


def test_close_with_a_live_view_says_so_and_can_be_repeated(memfd: int):
    region = attach(memfd)
    view = region.slot(0)
    with pytest.raises(BufferError):
        region.close()
    view[:1] = b"x"
    view.release()
    region.close()
    region.close()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"slot_bytes": 0}, "slot_bytes"),
        ({"slot_bytes": MIB + 1}, "slot_bytes"),
        ({"slot_bytes": 2 << 30, "stride": 2 << 30}, "slot_bytes"),
        ({"stride": 0}, "slot_stride_bytes"),
        ({"slots": 0}, "segments[0].slot_count"),
        ({"slots": (1 << 24) + 1}, "segments[0].slot_count"),
        ({"slots": 5}, "segments[0]"),
        ({"offset": 4096}, "segments[0]"),
        ({"offset": 100, "slots": 1}, "segments[0].offset_bytes"),
        ({"offset": 1 << 63, "slots": 1}, "segments[0]"),
    ],
)
def test_bad_geometry_is_refused_with_the_field(memfd: int, changes, field: str):
    with pytest.raises(InvalidArgument) as refusal:
        attach(memfd, **changes)
    assert refusal.value.field == field


def test_counts_of_segments_and_descriptors(memfd: int):
    with pytest.raises(InvalidArgument, match="2 segments came with 1 descriptors"):
        MAPPER.attach([memfd], [SegmentSpec(0, 1)] * 2, MIB, MIB)
    with pytest.raises(InvalidArgument, match="1 to 64"):
        MAPPER.attach([], [], MIB, MIB)
    with pytest.raises(InvalidArgument, match="1 to 64"):
        MAPPER.attach([memfd] * 65, [SegmentSpec(0, 1)] * 65, MIB, MIB)


def test_what_is_no_shared_memory_is_refused():
    with tempfile.TemporaryFile(dir="/var/tmp") as file, tempfile.TemporaryDirectory() as folder:
        file.truncate(MIB)
        directory = os.open(folder, os.O_RDONLY)
        reader, writer = os.pipe()
        for descriptor in (file.fileno(), directory, reader):
            with pytest.raises(InvalidArgument, match="tmpfs"):
                attach(descriptor, slots=1)
        for descriptor in (directory, reader, writer):
            os.close(descriptor)


def test_a_descriptor_must_be_readable_and_writable(shm_file: Path):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_PATH):
        descriptor = os.open(shm_file, flags)
        with pytest.raises(PermissionDenied, match="reading and writing"):
            attach(descriptor)
        os.close(descriptor)


def test_a_file_sealed_against_writing_is_refused(memfd: int):
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(PermissionDenied, match="mapped for writing"):
        attach(memfd)


def test_no_descriptor_left(memfd: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(memfd)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        with pytest.raises(ResourceExhausted, match="RLIMIT_NOFILE"):
            attach(memfd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_regions_stay_out_of_core_dumps(memfd: int):
    region = attach(memfd)
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    mapping = smaps[smaps.index("memfd:kvferry-test") :]
    flags = next(line for line in mapping.splitlines() if line.startswith("VmFlags:"))
    assert {"dd", "dc", "sh"} <= set(flags.split())
    region.close()


def test_open_by_name(shm_file: Path):
    descriptor = MAPPER.open_by_name(shm_file.name)
    assert os.fstat(descriptor).st_ino == shm_file.stat().st_ino
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/x", "a\0b", "x" * 256])
def test_a_bad_shm_name_is_refused(name: str):
    with pytest.raises(InvalidArgument, match="shm_name"):
        MAPPER.open_by_name(name)


def test_M10_an_absent_shm_file_hints_at_the_shared_dev_shm():
    with pytest.raises(NotFound, match="shared /dev/shm"):
        MAPPER.open_by_name("kvferry_absent")


def test_links_and_foreign_files_are_refused_by_name(shm_file: Path):
    link = shm_file.with_name(shm_file.name + "_link")
    link.symlink_to(shm_file)
    fifo = shm_file.with_name(shm_file.name + "_fifo")
    os.mkfifo(fifo)
    try:
        with pytest.raises(InvalidArgument):
            MAPPER.open_by_name(link.name)
        with pytest.raises(InvalidArgument, match="regular"):
            MAPPER.open_by_name(fifo.name)
        if os.geteuid() == 0:
            os.chown(shm_file, 12345, 12345)
            with pytest.raises(PermissionDenied, match="uid 12345"):
                MAPPER.open_by_name(shm_file.name)
    finally:
        link.unlink()
        fifo.unlink()
