"""What the daemon needs from the outside, as protocols that adapters implement.

Threading: the runner calls ports on the event loop's thread, and no method but those marked blocking
may wait. `done` callbacks come from any thread, exactly once each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
        """Transfers that really run at once. `transfer` may be called that many times
        without a `done` in between."""

    def transfer(
        self,
        kind: JobKind,
        name: str,
        buffer: memoryview,
        done: Callable[[TransferStatus], None],
    ) -> None:
        """Start to write `buffer` to the object, or to fill it from the object.

        `buffer` is 1-D, contiguous, writable, of bytes, and stays valid until `done`. When `done` is called,
        nothing touches `buffer` any more, whatever the status. Verification is part of
        the transfer: OK of a load means length and, where known, checksum are right.
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

        Before the first passed one, `transfer` and `probe` end as unavailable. May be repeated at any time.
        """

    def close(self) -> None:
        """Blocking: wait for running transfers and probes, then release everything."""


class Region(Protocol):
    """An attached region of shared memory."""

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


class Clock(Protocol):
    """Monotonic time."""

    def monotonic(self) -> float:
        """Seconds since some fixed point."""
