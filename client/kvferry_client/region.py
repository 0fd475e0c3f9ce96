"""From a memoryview to the descriptors of the files behind it. Standard library only.

The view's address is looked up in /proc/self/maps, which names device, inode and file
offset of the mapping; an entry of /proc/self/fd with the same device and inode, open for
reading and writing, is duplicated. This needs no path, so it works after the file was
unlinked, and a mapping made by Python's mmap always keeps such a descriptor open.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from kvferry_client.errors import RegionError

VIEW_AXES: Final = 2
MAX_SEGMENTS: Final = 64
"""Most pieces that a daemon accepts."""


class _Mapping(NamedTuple):
    """One line of /proc/self/maps."""

    start: int
    end: int
    writable_shared: bool
    offset: int
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of whole slots in one file."""

    descriptor: int
    """Open for reading and writing, close-on-exec, owned by the `RegionSource`."""
    offset_bytes: int
    slot_count: int


@dataclass(frozen=True, slots=True)
class RegionSource:
    """What the daemon needs to map a region. Owns its descriptors: use as a context manager."""

    slots: int
    slot_stride_bytes: int
    segments: tuple[Segment, ...]

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the descriptors."""
        self.close()

    def close(self) -> None:
        """Close the descriptors; the region itself stays as it is."""
        for segment in self.segments:
            os.close(segment.descriptor)


def check_view(view: memoryview) -> tuple[int, int]:
    """Return (slots, stride in bytes) of a region's view.

    Raises RegionError unless it is 2-D, C-contiguous, writable and not empty.
    """
    if view.ndim != VIEW_AXES or view.shape is None:
        message = f"a region's view needs the shape (slots, stride), this one has {view.ndim} axes"
        raise RegionError(message)
    if not view.c_contiguous:
        raise RegionError("a region's view must be C-contiguous")
    if view.readonly:
        raise RegionError("a region's view must be writable, this one is read-only")
    slots, columns = view.shape
    if slots < 1 or columns < 1:
        raise RegionError(f"a region needs at least one slot and one byte, not {view.shape}")
    return slots, columns * view.itemsize


def open_region(view: memoryview) -> RegionSource:
    """Find the files behind `view` and return duplicates of their descriptors.

    Raises RegionError if the view is unsuitable, isn't backed by a shared, writable file
    mapping, or if this process has no read-write descriptor of the file left.
    """
    slots, stride = check_view(view)
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    pieces = _file_pieces(start, start + slots * stride)
    if len(pieces) > MAX_SEGMENTS:
        raise RegionError(f"the region has {len(pieces)} pieces, at most {MAX_SEGMENTS} work")
    segments: list[Segment] = []
    try:
        for piece in pieces:
            count = _whole_slots(piece, stride)
            descriptor = _duplicate_descriptor(piece.device, piece.inode)
            segments.append(Segment(descriptor, piece.offset, count))
    except BaseException:
        for segment in segments:
            os.close(segment.descriptor)
        raise
    return RegionSource(slots, stride, tuple(segments))


def _whole_slots(piece: _Mapping, stride: int) -> int:
    """Return how many slots a piece holds. Raises RegionError if one is cut in two."""
    count, rest = divmod(piece.end - piece.start, stride)
    if rest:
        message = (
            f"the region changes files inside a slot: {piece.end - piece.start} bytes at file "
            f"offset {piece.offset} are no multiple of the stride {stride}"
        )
        raise RegionError(message)
    return count


def _file_pieces(start: int, end: int) -> list[_Mapping]:
    """Cover [start, end) by mappings, joined where one file goes on. Raises RegionError."""
    pieces: list[_Mapping] = []
    position = start
    for mapping in _read_maps():
        if mapping.end <= position or position >= end:
            continue
        if mapping.start > position:
            break
        if not mapping.writable_shared or mapping.inode == 0:
            message = (
                f"the region at {position:#x} isn't a shared, writable mapping of a file: "
                "allocate it on tmpfs (/dev/shm) or with memfd_create and MAP_SHARED"
            )
            raise RegionError(message)
        piece = mapping._replace(
            start=position,
            end=min(mapping.end, end),
            offset=mapping.offset + position - mapping.start,
        )
        position = piece.end
        if pieces and _continues(pieces[-1], piece):
            pieces[-1] = pieces[-1]._replace(end=piece.end)
        else:
            pieces.append(piece)
    if position < end:
        raise RegionError(f"the region's memory at {position:#x} is not mapped")
    return pieces


def _continues(before: _Mapping, after: _Mapping) -> bool:
    """Tell whether `after` is the same file's next piece (the kernel splits mappings)."""
    same_file = (before.device, before.inode) == (after.device, after.inode)
    return same_file and before.offset + before.end - before.start == after.offset


def _read_maps() -> list[_Mapping]:
    """Parse /proc/self/maps; it is sorted by address."""
    mappings = []
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, mode, offset, device, inode = line.split(maxsplit=5)[:5]
            first, last = span.split("-")
            major, minor = device.split(":")
            mappings.append(
                _Mapping(
                    start=int(first, 16),
                    end=int(last, 16),
                    writable_shared=mode[1] == "w" and mode[3] == "s",
                    offset=int(offset, 16),
                    device=os.makedev(int(major, 16), int(minor, 16)),
                    inode=int(inode),
                )
            )
    return mappings


def _duplicate_descriptor(device: int, inode: int) -> int:
    """Duplicate a read-write descriptor of the file. Raises RegionError if there is none."""
    read_only = False
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        try:
            status = os.fstat(number)
            if (status.st_dev, status.st_ino) != (device, inode):
                continue
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
                read_only = True
                continue
            duplicate = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 0)
        except OSError:
            continue  # Closed since the listing, by another thread or as the listing's own.
        status = os.fstat(duplicate)
        if (status.st_dev, status.st_ino) == (device, inode):
            return duplicate
        os.close(duplicate)
    found = "only read-only descriptors" if read_only else "no descriptor"
    message = (
        f"{found} of the region's file (device {os.major(device)}:{os.minor(device)}, inode "
        f"{inode}) left in this process: keep the one that the region was mapped with open"
    )
    raise RegionError(message)
