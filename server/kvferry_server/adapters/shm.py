"""Maps the shared memory of an engine: `core.ports.RegionMapper` for Linux.

Plain open and mmap. `multiprocessing.shared_memory` would unlink segments that belong to
others. Nothing here writes, truncates or unlinks a file, and attaching touches no page.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from kvferry_server.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    KvferryError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from kvferry_server.core.ports import FileRange, SegmentSpec

__all__ = ["SharedMemoryMapper", "SharedMemoryRegion"]

MAX_SEGMENTS = 64
MAX_SLOTS_PER_SEGMENT = 16_777_216
MAX_SLOT_BYTES = 1 << 30
OFFSET_ALIGNMENT = 4_096
SHM_DIRECTORY = Path("/dev/shm")  # noqa: S108  the directory of POSIX shared memory
_TMPFS_MAGIC = 0x0102_1994
_STATFS_BYTES = 256
_ACCESS_ERRORS = (errno.EACCES, errno.EPERM)
_MEMORY_ERRORS = (errno.ENOMEM, errno.EAGAIN)
_NAME_MAX = 255

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Segment:
    """One mapping and the descriptor that tells its file's size."""

    descriptor: int
    mapping: mmap.mmap
    range: FileRange


class SharedMemoryRegion:
    """An attached region. Not thread-safe; used on the event loop's thread."""

    def __init__(
        self, segments: Sequence[_Segment], slot_counts: Sequence[int], geometry: tuple[int, int]
    ) -> None:
        self._segments = tuple(segments)
        self._first_slots = (0, *accumulate(slot_counts))
        self._slot_bytes, self._stride = geometry

    @property
    def ranges(self) -> tuple[FileRange, ...]:
        """What is mapped, one entry per segment."""
        return tuple(segment.range for segment in self._segments)

    @property
    def mapped_bytes(self) -> int:
        """Size of all mappings."""
        return sum(each.end - each.start for each in self.ranges)

    def slot(self, index: int) -> memoryview:
        """The chunk in this slot, after a look at the file's present size.

        Raises:
            FailedPrecondition: the file no longer holds the slot.
        """
        number = bisect_right(self._first_slots, index) - 1
        segment = self._segments[number]
        start = (index - self._first_slots[number]) * self._stride
        end = start + self._slot_bytes
        if os.fstat(segment.descriptor).st_size < segment.range.start + end:
            raise FailedPrecondition(
                f"the region's file no longer holds slot {index}: it was truncated",
                reason="REGION_SHRANK",
            )
        return memoryview(segment.mapping)[start:end]

    def close(self) -> None:
        """Unmap and close; may be repeated after a failure.

        Raises:
            BufferError: a view of a slot is still alive; nothing of its mapping is freed.
        """
        for segment in self._segments:
            if not segment.mapping.closed:
                segment.mapping.close()
                os.close(segment.descriptor)


class SharedMemoryMapper:
    """Checks descriptors and maps them."""

    def attach(
        self,
        descriptors: Sequence[int],
        segments: Sequence[SegmentSpec],
        slot_bytes: int,
        slot_stride_bytes: int,
    ) -> SharedMemoryRegion:
        """Check and map. The descriptors stay the caller's.

        Raises:
            InvalidArgument: counts, sizes or file type can't be right.
            PermissionDenied: a descriptor is not readable and writable.
            ResourceExhausted: no address space or descriptor is left.
        """
        _check_geometry(segments, slot_bytes, slot_stride_bytes)
        if len(descriptors) != len(segments):
            raise InvalidArgument(
                f"{len(segments)} segments came with {len(descriptors)} descriptors: send one each",
                reason="DESCRIPTOR_COUNT",
                field="segments",
            )
        mapped: list[_Segment] = []
        with ExitStack() as undo:
            for index, (descriptor, spec) in enumerate(zip(descriptors, segments, strict=True)):
                segment = _map(descriptor, spec, slot_stride_bytes, f"segments[{index}]")
                undo.callback(os.close, segment.descriptor)
                undo.callback(segment.mapping.close)
                mapped.append(segment)
            undo.pop_all()
        counts = [spec.slot_count for spec in segments]
        return SharedMemoryRegion(mapped, counts, (slot_bytes, slot_stride_bytes))

    def open_by_name(self, shm_name: str) -> int:
        """Open /dev/shm/<shm_name> of the own uid; the descriptor is the caller's.

        Raises:
            InvalidArgument: the name has a slash or is not a regular file.
            NotFound: there is no such file here.
            PermissionDenied: the file belongs to another uid.
        """
        if "/" in shm_name or "\0" in shm_name or shm_name in {"", ".", ".."}:
            raise _bad_name("must be a file name without a slash")
        if len(os.fsencode(shm_name)) > _NAME_MAX:
            raise _bad_name(f"may have at most {_NAME_MAX} bytes")
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(SHM_DIRECTORY / shm_name, flags)
        except OSError as error:
            raise _open_error(shm_name, error) from error
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return descriptor
        os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _bad_name("is not a regular file")
        raise PermissionDenied(
            f"{SHM_DIRECTORY / shm_name} belongs to uid {status.st_uid}, not to the daemon's: "
            "pass its descriptor over lease.sock instead",
            reason="SHM_OTHER_OWNER",
            field="shm_name",
        )


def _bad_name(problem: str) -> InvalidArgument:
    return InvalidArgument(f"shm_name {problem}", reason="BAD_SHM_NAME", field="shm_name")


def _open_error(shm_name: str, error: OSError) -> KvferryError:
    if error.errno == errno.ENOENT:
        return NotFound(
            f"no file {SHM_DIRECTORY / shm_name} here: the daemon and the engine need a "
            "shared /dev/shm to attach by name (containers have their own each); lease.sock does "
            "without",
            reason="SHM_NOT_FOUND",
            field="shm_name",
        )
    if error.errno in _ACCESS_ERRORS:
        return PermissionDenied(
            f"{SHM_DIRECTORY / shm_name} can't be opened for reading and writing by the daemon",
            reason="SHM_ACCESS",
            field="shm_name",
        )
    return _bad_name(f"can't be opened: {error.strerror}")


def _check_geometry(segments: Sequence[SegmentSpec], slot_bytes: int, stride: int) -> None:
    _check_count("slot_bytes", slot_bytes, MAX_SLOT_BYTES)
    _check_count("slot_stride_bytes", stride, MAX_SLOT_BYTES)
    if slot_bytes > stride:
        raise InvalidArgument(
            f"slot_bytes {slot_bytes} is more than slot_stride_bytes {stride}",
            reason="SLOT_LARGER_THAN_STRIDE",
            field="slot_bytes",
        )
    _check_count("segments", len(segments), MAX_SEGMENTS)
    for index, spec in enumerate(segments):
        _check_count(f"segments[{index}].slot_count", spec.slot_count, MAX_SLOTS_PER_SEGMENT)
        if spec.offset_bytes % OFFSET_ALIGNMENT:
            raise InvalidArgument(
                f"segments[{index}].offset_bytes {spec.offset_bytes} is no multiple of "
                f"{OFFSET_ALIGNMENT}",
                reason="OFFSET_ALIGNMENT",
                field=f"segments[{index}].offset_bytes",
            )


def _check_count(field: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise InvalidArgument(
            f"{field} must be 1 to {limit}, is {value}", reason="OUT_OF_RANGE", field=field
        )


def _map(descriptor: int, spec: SegmentSpec, stride: int, field: str) -> _Segment:
    """Check and map one segment.

    Raises:
        InvalidArgument: the file is too small or of the wrong kind.
        PermissionDenied: the descriptor is not readable and writable.
        ResourceExhausted: no address space or descriptor is left.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or _filesystem_type(descriptor) != _TMPFS_MAGIC:
        raise InvalidArgument(
            f"{field} is no regular file on tmpfs and no memfd of normal pages",
            reason="NOT_SHARED_MEMORY",
            field=field,
        )
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise PermissionDenied(
            f"the descriptor of {field} must be open for reading and writing",
            reason="DESCRIPTOR_NOT_READ_WRITE",
            field=field,
        )
    length = spec.slot_count * stride
    end = spec.offset_bytes + length
    if status.st_size < end:
        raise InvalidArgument(
            f"{field} needs {end} bytes, its file has {status.st_size}",
            reason="REGION_TOO_SMALL",
            field=field,
        )
    file_range = FileRange(status.st_dev, status.st_ino, spec.offset_bytes, end)
    try:
        own = os.dup(descriptor)
    except OSError as error:
        raise _map_error(field, error) from error
    try:
        mapping = mmap.mmap(own, length, offset=spec.offset_bytes)
    except OSError as error:
        os.close(own)
        raise _map_error(field, error) from error
    mapping.madvise(mmap.MADV_DONTDUMP)
    mapping.madvise(mmap.MADV_DONTFORK)
    return _Segment(own, mapping, file_range)


def _map_error(field: str, error: OSError) -> KvferryError:
    if error.errno in _ACCESS_ERRORS:
        return PermissionDenied(
            f"{field} can't be mapped for writing: {error.strerror}",
            reason="MAP_DENIED",
            field=field,
        )
    if error.errno in (*_MEMORY_ERRORS, errno.EMFILE, errno.ENFILE):
        return ResourceExhausted(
            f"{field} can't be mapped: {error.strerror}; raise the daemon's address-space or "
            "descriptor limit (RLIMIT_AS, RLIMIT_NOFILE)",
            reason="NO_ADDRESS_SPACE",
            field=field,
        )
    return InvalidArgument(
        f"{field} can't be mapped: {error.strerror}", reason="MAP_FAILED", field=field
    )


def _filesystem_type(descriptor: int) -> int:
    """`f_type` of fstatfs(2), which is the structure's first word on Linux."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return ctypes.c_long.from_buffer(buffer).value
