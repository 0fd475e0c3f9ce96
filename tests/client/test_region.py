"""Finding the descriptor behind a memoryview."""

from __future__ import annotations

import array
import ctypes
import fcntl
import mmap
import os
import secrets
from pathlib import Path

import pytest

from kvferry_client import RegionError
from kvferry_client.region import open_region

from .conftest import Region

PAGE = mmap.PAGESIZE


def view_of(mapping: mmap.mmap, slots: int, stride: int) -> memoryview:
    return memoryview(mapping).cast("B", (slots, stride))


def read_back(descriptor: int, offset: int, size: int) -> bytes:
    """Read through another mapping, as a daemon would."""
    with mmap.mmap(descriptor, offset + size) as other:
        return other[offset : offset + size]


def test_memfd_round_trip(region: Region) -> None:
    region.write(3, 0xAB)
    with open_region(region.view) as source:
        assert (source.slots, source.slot_stride_bytes) == region.view.shape
        (segment,) = source.segments
        assert (segment.offset_bytes, segment.slot_count) == (0, source.slots)
        assert fcntl.fcntl(segment.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert segment.descriptor != region.fd
        data = read_back(segment.descriptor, 3 * region.stride, region.stride)
    assert data == bytes([0xAB]) * region.stride


def test_M01_works_after_unlink_and_after_the_owner_closed_its_descriptor() -> None:
    path = Path("/dev/shm") / f"kvferry-test-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.ftruncate(fd, 4 * PAGE)
        mapping = mmap.mmap(fd, 4 * PAGE)
    finally:
        path.unlink()
    os.close(fd)
    mapping[PAGE] = 9
    with view_of(mapping, 4, PAGE) as view, open_region(view) as source:
        assert read_back(source.segments[0].descriptor, PAGE, 1) == b"\x09"
    mapping.close()


def test_other_mappings_of_the_file_do_not_confuse_it(region: Region) -> None:
    others = [mmap.mmap(region.fd, PAGE, offset=n * PAGE) for n in range(3)]
    with open_region(region.view) as source:
        assert source.segments[0].offset_bytes == 0
    mapping = mmap.mmap(region.fd, 8 * PAGE, offset=4 * PAGE)
    with view_of(mapping, 2, 4 * PAGE) as view, open_region(view) as source:
        (segment,) = source.segments
        assert (segment.offset_bytes, segment.slot_count) == (4 * PAGE, 2)
    mapping.close()
    for other in others:
        other.close()


def test_mapping_split_by_the_kernel_is_one_segment(region: Region) -> None:
    region.map.madvise(mmap.MADV_DONTDUMP, 16 * PAGE, 4 * PAGE)
    with open_region(region.view) as source:
        assert len(source.segments) == 1


def test_part_of_a_mapping_has_its_offset(region: Region) -> None:
    part = memoryview(region.map)[8 * PAGE : 12 * PAGE].cast("B", (4, PAGE))
    with part, open_region(part) as source:
        assert source.segments[0].offset_bytes == 8 * PAGE
        assert source.segments[0].slot_count == 4


def test_several_files_back_to_back_are_several_segments() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    whole = mmap.mmap(-1, 4 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    fds = [os.memfd_create("part") for _ in range(2)]
    for index, fd in enumerate(fds):
        os.ftruncate(fd, 2 * PAGE)
        address = base + index * 2 * PAGE
        assert libc.mmap(address, 2 * PAGE, 3, mmap.MAP_SHARED | 0x10, fd, 0) == address
    with view_of(whole, 4, PAGE) as view, open_region(view) as source:
        assert [s.slot_count for s in source.segments] == [2, 2]
        assert [s.offset_bytes for s in source.segments] == [0, 0]
    with view_of(whole, 1, 4 * PAGE) as view, pytest.raises(RegionError, match="inside a slot"):
        open_region(view)
    whole.close()
    for fd in fds:
        os.close(fd)


def test_only_a_read_only_descriptor_left_is_said() -> None:
    path = Path("/dev/shm") / f"kvferry-test-{secrets.token_hex(8)}"
    path.write_bytes(bytes(PAGE))
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        fd = os.open(path, os.O_RDWR)
        address = libc.mmap(None, PAGE, 3, mmap.MAP_SHARED, fd, 0)
        os.close(fd)
        view = (
            memoryview((ctypes.c_char * PAGE).from_address(address)).cast("B").cast("B", (1, PAGE))
        )
        with pytest.raises(RegionError, match="no descriptor"):
            open_region(view)
        read_only = os.open(path, os.O_RDONLY)
        with pytest.raises(RegionError, match="only read-only"):
            open_region(view)
        os.close(read_only)
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.munmap(address, PAGE)
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (memoryview(bytearray(16)), "axes"),
        (memoryview(bytes(16)).cast("B", (4, 4)), "read-only"),
        (memoryview(bytearray(16)).cast("B", (4, 4))[::2], "C-contiguous"),
        (
            memoryview(array.array("q", range(1024))).cast("B").cast("B", (2, 4096)),
            "isn't a shared",
        ),
        (
            memoryview(mmap.mmap(-1, 2 * PAGE, flags=mmap.MAP_PRIVATE)).cast("B", (2, PAGE)),
            "shared",
        ),
    ],
)
def test_unsuitable_views_are_refused(view: memoryview, problem: str) -> None:
    with pytest.raises(RegionError, match=problem):
        open_region(view)


def test_no_descriptor_leaks(region: Region) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with open_region(region.view):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before
