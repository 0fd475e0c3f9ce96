"""`FakeClient`: the client's surface without a daemon, for other people's tests.

Objects live in a dict that several fakes may share. Everything finishes at once and is
reported by the next `take_results` or `take_lookups`. With `attached = False` it behaves
like a client whose daemon is away; keys in `failing` fail as UNAVAILABLE.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvferry_client.region import check_view
from kvferry_client.shared import take_some
from kvferry_client.types import (
    ClientState,
    JobKind,
    JobResult,
    LookupReply,
    Outcome,
    Presence,
    RequestContext,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeClient:
    """Stands in for `Client`; see the module's docstring."""

    def __init__(
        self,
        region_view: memoryview,
        *,
        objects: dict[bytes, bytes] | None = None,
        slot_bytes: int | None = None,
    ) -> None:
        """Serve `region_view` from `objects`, by default an empty store of its own."""
        self.slots, stride = check_view(region_view)
        self.slot_bytes = stride if slot_bytes is None else slot_bytes
        self.objects: dict[bytes, bytes] = {} if objects is None else objects
        self.failing: set[bytes] = set()
        self.attached = True
        self.last_error = ""
        self.counters: dict[str, int] = {}
        self.closed = False
        self._view = region_view
        self._stride = stride
        self._next_id = 1
        self._results: deque[JobResult] = deque()
        self._replies: deque[LookupReply] = deque()

    @property
    def state(self) -> ClientState:
        """Where the client stands with its daemon."""
        if self.closed:
            return ClientState.CLOSED
        return ClientState.ATTACHED if self.attached else ClientState.CONNECTING

    @property
    def open_jobs(self) -> int:
        """Always 0: jobs finish at once."""
        return 0

    def start(self) -> None:
        """Do nothing: there is nothing to connect to."""

    def store(
        self, keys: Sequence[bytes], slots: Sequence[int], context: RequestContext | None = None
    ) -> int:
        """Copy the slots into `objects`."""
        del context
        outcomes = []
        for key, slot in zip(keys, slots, strict=True):
            if not self._usable:
                outcomes.append(Outcome.NOT_SENT)
            elif key in self.failing:
                outcomes.append(Outcome.UNAVAILABLE)
            elif key in self.objects:
                outcomes.append(Outcome.SKIPPED_PRESENT)
            else:
                self.objects[bytes(key)] = self._read(slot)
                outcomes.append(Outcome.STORED)
        return self._finish(JobKind.STORE, outcomes)

    def load(
        self, keys: Sequence[bytes], slots: Sequence[int], context: RequestContext | None = None
    ) -> int:
        """Copy from `objects` into the slots."""
        del context
        outcomes = []
        for key, slot in zip(keys, slots, strict=True):
            if not self._usable:
                outcomes.append(Outcome.NOT_SENT)
            elif key in self.failing:
                outcomes.append(Outcome.UNAVAILABLE)
            elif key not in self.objects:
                outcomes.append(Outcome.MISSING)
            else:
                self._write(slot, self.objects[key])
                outcomes.append(Outcome.LOADED)
        return self._finish(JobKind.LOAD, outcomes)

    def lookup(
        self,
        keys: Sequence[bytes],
        prefix_ordered: bool = False,  # noqa: FBT001, FBT002 - same as the client's
        context: RequestContext | None = None,
    ) -> int:
        """Answer from `objects`."""
        del prefix_ordered, context
        verdicts = tuple(self._presence(key) for key in keys)
        self._replies.append(LookupReply(self._take_id(), verdicts))
        return self._replies[-1].ticket

    def take_results(self, max_chunks: int | None = None) -> list[JobResult]:
        """Return the jobs since the last call."""
        return take_some(self._results, lambda result: len(result.outcomes), max_chunks)

    def take_lookups(self, max_keys: int | None = None) -> list[LookupReply]:
        """Return the lookups since the last call."""
        return take_some(self._replies, lambda reply: len(reply.verdicts), max_keys)

    def wait_attached(self, timeout_s: float) -> bool:
        """Return whether it is attached, without waiting."""
        del timeout_s
        return self._usable

    def wait_results(self, timeout_s: float) -> bool:
        """Return whether something can be taken, without waiting."""
        del timeout_s
        return bool(self._results or self._replies)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Return True: jobs finish at once."""
        del timeout_s
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Refuse everything from now on."""
        del timeout_s
        self.closed = True
        return True

    @property
    def _usable(self) -> bool:
        return self.attached and not self.closed

    def _read(self, slot: int) -> bytes:
        start = slot * self._stride
        with self._view.cast("B") as flat:
            return bytes(flat[start : start + self.slot_bytes])

    def _write(self, slot: int, data: bytes) -> None:
        start = slot * self._stride
        with self._view.cast("B") as flat:
            flat[start : start + self.slot_bytes] = data

    def _presence(self, key: bytes) -> Presence:
        if not self._usable or key in self.failing:
            return Presence.UNKNOWN
        return Presence.PRESENT if key in self.objects else Presence.ABSENT

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _finish(self, kind: JobKind, outcomes: list[Outcome]) -> int:
        job_id = self._take_id()
        moved = sum(outcome in (Outcome.STORED, Outcome.LOADED) for outcome in outcomes)
        self._results.append(JobResult(job_id, kind, tuple(outcomes), moved * self.slot_bytes))
        return job_id
