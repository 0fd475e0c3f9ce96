"""What the daemon needs from the outside, as protocols that adapters implement.

Threading: the runner calls ports on the event loop's thread, and no method but those marked
blocking may wait. `done` callbacks come from any thread, exactly once each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .types import JobKind, Presence, TransferStatus


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One step of a preflight."""

    name: str
    passed: bool
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a preflight found.

    Args:
        ready: the store can be used.
        settings: the chosen settings in words, such as "path addressing, checksum required".
        problem: one line that says which of bucket, endpoint, region, credentials or checksum
            setting is wrong and what to change; empty if ready.
        steps: what was done, in order.
    """

    ready: bool
    settings: str
    problem: str
    steps: tuple[CheckStep, ...]


class ObjectStore(Protocol):
    """Moves chunks between memory and named objects.

    Names are `[A-Za-z0-9._/-]` paths relative to the store's own prefix.
    """

    @property
    def url(self) -> str:
        """Where the objects are, without credentials."""

    @property
    def max_active_chunks(self) -> int:
        """Transfers that really run at once: so many may be open at a time."""

    def transfer(
        self,
        kind: JobKind,
        name: str,
        buffer: memoryview,
        done: Callable[[TransferStatus], None],
    ) -> None:
        """Start to write `buffer` to the object, or to fill it from the object.

        `buffer` is 1-D, contiguous, writable, of bytes, and stays valid until `done`. When
        `done` is called, nothing touches `buffer` any more, whatever the status.
        Verification is part of the transfer: OK of a load means length and, where known,
        checksum are right.
        """

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        """Find out which objects exist, in order; None if the store can't be reached.

        Never waits behind transfers. A key whose probe failed is UNKNOWN, and the
        others keep their right answers.
        """

    def preflight(self) -> Preflight:
        """Blocking: try the store for real and settle on working settings.

        Before the first passed one, `transfer` and `probe` end as unavailable. May be
        repeated at any time.
        """

    def refresh_credentials(self) -> None:
        """Read credentials anew soon, and go on with them if they are others and accepted."""

    def close(self) -> None:
        """Blocking: wait for running transfers and probes, then release everything."""


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """One piece of a region, as the client describes it."""

    offset_bytes: int
    slot_count: int


class FileRange(NamedTuple):
    """Bytes `start` to `end` (exclusive) of one file; tells regions that overlap."""

    device: int
    inode: int
    start: int
    end: int


class Region(Protocol):
    """An attached region of shared memory."""

    @property
    def ranges(self) -> tuple[FileRange, ...]:
        """What it maps, one entry per segment."""

    @property
    def mapped_bytes(self) -> int:
        """Size of its mappings."""

    def slot(self, index: int) -> memoryview:
        """The chunk in this slot: `slot_bytes` bytes.

        Raises:
            FailedPrecondition: the file no longer holds the slot.
        """

    def close(self) -> None:
        """Unmap. Views handed out before must be released by then."""


class RegionMapper(Protocol):
    """Turns descriptors into a mapped region."""

    def attach(
        self,
        descriptors: Sequence[int],
        segments: Sequence[SegmentSpec],
        slot_bytes: int,
        slot_stride_bytes: int,
    ) -> Region:
        """Check and map; touches no page. The descriptors stay the caller's.

        Raises:
            InvalidArgument: counts, sizes or file type can't be right.
            PermissionDenied: the descriptor is not readable and writable.
        """

    def open_by_name(self, shm_name: str) -> int:
        """Open /dev/shm/<shm_name> of the own uid for debugging; the descriptor is the caller's.

        Raises:
            InvalidArgument: the name has a slash or is not a regular file.
            NotFound: there is no such file here; the text mentions a shared /dev/shm.
            PermissionDenied: the file belongs to another uid.
        """


class Clock(Protocol):
    """Monotonic time."""

    def monotonic(self) -> float:
        """Seconds since some fixed point."""
