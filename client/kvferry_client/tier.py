"""The tier's logic without vLLM: request-level verdicts, batching, job ids, failed loads.

Rules, each learned from somebody's bug report:

* A lookup is RETRY until its verdict is there; the client's own deadline turns it into a
  miss, so it can't stall a request.
* A verdict holds for its request until the request ends, UNKNOWN included: the scheduler asks
  anew in each step, and a miss that turns into RETRY again would never let it go on.
* A key whose load failed is a miss for that request from then on, without another load;
  other requests that had cached a hit ask again.
* Each vLLM job id is reported once; results of unknown jobs are dropped and counted.

Threading: called under vLLM's manager lock, never concurrently, by no particular thread.
Nothing here blocks but `drain` and `shutdown`.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kvferry_client.forks import in_child
from kvferry_client.types import (
    LOADED_OUTCOMES,
    STORED_OUTCOMES,
    JobKind,
    JobResult,
    LookupReply,
    Presence,
    RequestContext,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MAX_TAKEN: Final = 16
"""Results and verdicts taken in at once, in chunks: what came in a burst must not hold up a step.
An engine makes a step in some milliseconds, so this is thousands a second."""

MAX_TIMES: Final = 4096
"""Times of lookups kept for an engine that asks for its metrics seldom or never."""


class TierClient(Protocol):
    """What the tier needs of `Client`; `FakeClient` has it too."""

    def start(self) -> None:
        """Start connecting in the background."""

    def store(
        self, keys: Sequence[bytes], slots: Sequence[int], context: RequestContext | None = None
    ) -> int:
        """Queue a store job; return its id."""

    def load(
        self, keys: Sequence[bytes], slots: Sequence[int], context: RequestContext | None = None
    ) -> int:
        """Queue a load job; return its id."""

    def lookup(
        self,
        keys: Sequence[bytes],
        prefix_ordered: bool = False,  # noqa: FBT001, FBT002 - same as the client's
        context: RequestContext | None = None,
    ) -> int:
        """Ask for keys; return a ticket."""

    def take_results(self, max_chunks: int | None = None) -> list[JobResult]:
        """Return finished jobs, no more once they have `max_chunks` chunks."""

    def take_lookups(self, max_keys: int | None = None) -> list[LookupReply]:
        """Return finished lookups, no more once they have `max_keys` keys."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until all jobs have results."""

    def close(self, timeout_s: float = 5.0) -> bool:
        """End the session."""


class Verdict(Enum):
    """What the scheduler is told about a key."""

    HIT = auto()
    MISS = auto()
    RETRY = auto()


class FinishedJob(NamedTuple):
    """A job of vLLM that has ended."""

    job_id: int
    kind: JobKind
    success: bool
    good_keys: tuple[bytes, ...]
    """Loads: the keys whose slots are filled. Stores: those known to be in the store."""
    transferred_bytes: int
    transfer_seconds: float


@dataclass(slots=True)
class _OpenJob:
    job_id: int
    request_id: str
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A question that is open, and when it was asked."""

    request_id: str
    keys: tuple[bytes, ...]
    asked_at: float


@dataclass(slots=True)
class _Group:
    """Keys of one request and KV-cache group that wait to be asked for."""

    context: RequestContext
    keys: list[bytes] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)

    @property
    def prefix_ordered(self) -> bool:
        """True if the positions rise: full attention is scanned forwards, windows backwards."""
        known = [position for position in self.positions if position is not None]
        if len(known) != len(self.positions):
            return False
        return len(known) > 1 and all(before < after for before, after in itertools.pairwise(known))


class TierLogic:
    """State of one tier; see the module's docstring."""

    def __init__(self, client: TierClient, clock: Callable[[], float] = time.monotonic) -> None:
        """Serve from `client`, which this object starts and closes; `clock` is in seconds."""
        self._client = client
        self._clock = clock
        self._begin()
        in_child(self, TierLogic._begin)

    def _begin(self) -> None:
        """Start with nothing; in a forked child too, whose client numbers its calls anew.

        Its parent's jobs are neither awaited nor reported there: who would know their end?
        """
        self._verdicts: dict[str, dict[bytes, Verdict]] = {}
        self.waiting: dict[tuple[str, bytes], _Group] = {}
        """Keys that nobody has asked the daemon for yet, by request and KV-cache group."""
        self._tickets: dict[int, _Ticket] = {}
        self._asking: dict[str, set[int]] = {}
        """Open tickets of requests that have not ended."""
        self._jobs: dict[int, _OpenJob] = {}
        self._drained = False
        """Whether `finished` has to return at once all that is open."""
        self.unknown_results = 0
        """Results of jobs that nobody waits for, since the start."""
        self.lookup_seconds: deque[float] = deque(maxlen=MAX_TIMES)
        """How long lookups took from question to verdict; whoever reports them takes them out."""

    def start(self) -> None:
        """Start connecting in the background."""
        self._client.start()

    def lookup(self, key: bytes, context: RequestContext, position: int | None = None) -> Verdict:
        """Return the verdict on a key for a request; RETRY while it is open.

        `position` is the token position where the chunk ends, if known.
        """
        request_id = context.request_id
        verdicts = self._verdicts.setdefault(request_id, {})
        if verdicts.get(key) is Verdict.RETRY:
            self._take_lookups()
        verdict = verdicts.get(key)
        if verdict is not None:
            return verdict
        group_id = (request_id, key[-4:])
        if group_id not in self.waiting:
            self.flush()
            self.waiting[group_id] = _Group(context)
        group = self.waiting[group_id]
        group.keys.append(key)
        group.positions.append(position)
        verdicts[key] = Verdict.RETRY
        return Verdict.RETRY

    def flush(self) -> None:
        """Ask for all keys that wait. Called at the step's end and when another group begins."""
        while self.waiting:
            group_id = next(iter(self.waiting))
            request_id, group = group_id[0], self.waiting.pop(group_id)
            keys = tuple(group.keys)
            try:
                ticket = self._client.lookup(keys, group.prefix_ordered, group.context)
            except Exception:
                self._verdicts[request_id].update(dict.fromkeys(keys, Verdict.MISS))
                raise
            self._tickets[ticket] = _Ticket(request_id, keys, self._clock())
            self._asking.setdefault(request_id, set()).add(ticket)

    def submit_store(
        self, job_id: int, keys: Iterable[bytes], slots: Iterable[int], context: RequestContext
    ) -> None:
        """Queue a store of vLLM's; its request may have ended already."""
        job = _OpenJob(job_id, context.request_id, tuple(keys))
        self._jobs[self._client.store(job.keys, tuple(slots), context)] = job

    def submit_load(
        self, job_id: int, keys: Iterable[bytes], slots: Iterable[int], context: RequestContext
    ) -> None:
        """Queue a load of vLLM's."""
        job = _OpenJob(job_id, context.request_id, tuple(keys))
        self._jobs[self._client.load(job.keys, tuple(slots), context)] = job

    def finished(self) -> list[FinishedJob]:
        """Return vLLM's jobs that ended, each exactly once; the rest in the next call.

        After `drain` all of them.
        """
        self.flush()
        finished = []
        limit, self._drained = None if self._drained else MAX_TAKEN, False
        for result in self._client.take_results(limit):
            job = self._jobs.pop(result.job_id, None)
            if job is None:
                self.unknown_results += 1
                continue
            finished.append(self._finish(job, result))
        return finished

    def finish_request(self, request_id: str) -> None:
        """Forget a request's verdicts and open lookups; its jobs go on."""
        self._verdicts.pop(request_id, None)
        self._asking.pop(request_id, None)
        for group_id in [group_id for group_id in self.waiting if group_id[0] == request_id]:
            del self.waiting[group_id]

    def has_pending_work(self) -> bool:
        """Tell whether the engine must go on stepping: jobs or lookups are open."""
        self._take_lookups()
        self.flush()
        return bool(self._jobs) or bool(self._asking)

    def drain(self) -> None:
        """Block until every job has a result for `finished`."""
        self._client.drain()
        self._drained = bool(self._jobs)

    def shutdown(self, timeout_s: float) -> bool:
        """End the session; False if the daemon still holds the region after `timeout_s`."""
        return self._client.close(timeout_s)

    def _take_lookups(self) -> None:
        if not self._tickets:
            return
        for reply in self._client.take_lookups(MAX_TAKEN):
            ticket = self._tickets.pop(reply.ticket, None)
            if ticket is None:
                continue
            self._answered(ticket.request_id, reply.ticket)
            self.lookup_seconds.append(self._clock() - ticket.asked_at)
            verdicts = self._verdicts.get(ticket.request_id)
            if verdicts is None:
                continue
            for key, presence in zip(ticket.keys, reply.verdicts, strict=False):
                if verdicts.get(key) is Verdict.RETRY:
                    hit = presence is Presence.PRESENT
                    verdicts[key] = Verdict.HIT if hit else Verdict.MISS

    def _answered(self, request_id: str, ticket: int) -> None:
        asking = self._asking.get(request_id, set())
        asking.discard(ticket)
        if not asking:
            self._asking.pop(request_id, None)

    def _finish(self, job: _OpenJob, result: JobResult) -> FinishedJob:
        is_load = result.kind is JobKind.LOAD
        success = result.success
        good = LOADED_OUTCOMES if is_load else STORED_OUTCOMES
        good_keys = job.keys
        if not good.issuperset(result.outcomes):
            pairs = zip(job.keys, result.outcomes, strict=False)
            good_keys = tuple(key for key, outcome in pairs if outcome in good)
        if is_load and not success:
            self._spoil(job.request_id, set(job.keys).difference(good_keys))
        return FinishedJob(
            job.job_id,
            result.kind,
            success,
            good_keys,
            result.transferred_bytes,
            result.transfer_seconds,
        )

    def _spoil(self, request_id: str, keys: set[bytes]) -> None:
        """Make keys whose load failed a miss for the request; others drop their cached hit."""
        for other_id, verdicts in self._verdicts.items():
            for key in keys & verdicts.keys():
                if other_id == request_id:
                    verdicts[key] = Verdict.MISS
                elif verdicts[key] is Verdict.HIT:
                    del verdicts[key]
