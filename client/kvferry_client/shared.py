"""What the caller's thread and the three worker threads share, under one lock.

Threading: every field is guarded by `lock`, held for short, in-memory work only: never
over I/O, a call or a log line. The caller never waits for it: what it hands in waits in
`hand_in`'s queue if another thread has the lock, and what it takes lies in queues that need
none. `end_session` is the only place where possibly-sent jobs are released without a result.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from kvferry_client.lookups import LookupTable
from kvferry_client.types import ClientState, JobKind, JobResult, Outcome
from kvferry_client.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvferry_client.lease import Lease
    from kvferry_client.session import Session
    from kvferry_client.types import LookupReply

logger = logging.getLogger("kvferry_client")

_T = TypeVar("_T")
START_RETRY_SECONDS: Final = 1.0
"""Shortest time between two attempts to start the threads."""
NOTICE_SECONDS: Final = 30.0
"""Shortest time between two log lines about jobs that were dropped, or about failed calls."""


NOT_SENT_REASONS: Final = (
    "no_session",
    "session_ending",
    "queue_full",
    "invalid",
    "refused",
    "drained",
    "closed",
)
"""Why jobs never left this process, as the counters' names end."""
_CHUNK_COUNTERS: Final = {
    (kind, outcome): f"{kind.name.lower()}_chunks_{outcome.name.lower()}"
    for kind in JobKind
    for outcome in Outcome
}


def zeroed_counters() -> Counter[str]:
    """Return every counter of a client at 0."""
    names = [
        "sessions_attached",
        "sessions_ended",
        "sessions_given_up",
        "attach_refused",
        "jobs_lost",
        "calls_failed",
        "results_duplicate",
        "results_unknown",
    ]
    names += [f"jobs_not_sent_{reason}" for reason in NOT_SENT_REASONS]
    for kind in JobKind:
        name = kind.name.lower()
        names += [f"{name}_jobs_succeeded", f"{name}_jobs_failed", f"{name}_bytes"]
    names += _CHUNK_COUNTERS.values()
    return Counter(dict.fromkeys(names, 0))


@dataclass(frozen=True, slots=True)
class Config:
    """What a client was constructed with; sizes in bytes, times in seconds."""

    socket_dir: str
    region_view: memoryview
    namespace: str
    vllm_namespace: str
    engine_id: str
    slots: int
    slot_bytes: int
    lookup_timeout_s: float
    max_queued_jobs: int
    max_queued_lookup_keys: int
    stall_timeout_s: float


class Shared:
    """The state of one client in one process."""

    def __init__(self, config: Config) -> None:
        """Start without a session."""
        self.config = config
        self.lock = threading.Lock()
        self.sender_wakeup = Wakeup()
        self.poller_wakeup = threading.Condition(self.lock)
        self.changed = threading.Condition(self.lock)
        """Results, lookup replies or the state changed."""
        self.session: Session | None = None
        self.attaching: Lease | None = None
        self.started = False
        self.closing = False
        self._start_at = 0.0
        self.lacks_threads = False
        """True from when gRPC got no thread until this process gets one again."""
        self.last_error = ""
        self.counters = zeroed_counters()
        self.lookups = LookupTable(config.max_queued_lookup_keys)
        self.ids = itertools.count(1)
        self.handed_in: deque[Callable[[], None]] = deque()
        self.results: deque[JobResult] = deque()
        self._notices: Counter[str] = Counter()
        self._next_notice = 0.0
        self._calls_fail = False
        self._next_failure_line = 0.0

    def may_start(self, now: float) -> bool:
        """Note the start; False if it was before, or not now; call with the lock held."""
        if self.started or self.closing or now < self._start_at:
            return False
        self.started = True
        return True

    def not_started(self, problem: str, now: float) -> bool:
        """Take the start back, to be tried again soon; call with the lock held.

        Returns True if it deserves a line.
        """
        is_news = problem != self.last_error
        self.started, self._start_at, self.last_error = False, now + START_RETRY_SECONDS, problem
        return is_news

    @property
    def state(self) -> ClientState:
        """Where the client stands; true at some moment of the call even without the lock."""
        session = self.session
        if session is not None:
            return ClientState.ENDING if session.ending else ClientState.ATTACHED
        if self.closing:
            return ClientState.CLOSED
        return ClientState.CONNECTING if self.started else ClientState.IDLE

    @property
    def usable_session(self) -> Session | None:
        """The session if it takes new work; call with the lock held."""
        session = self.session
        return session if session is not None and not session.ending else None

    def totals(self) -> dict[str, int]:
        """Return a copy of every counter; needs no lock."""
        return {**self.counters, **self.lookups.totals()}

    def hand_in(self, work: Callable[..., None], *arguments: object) -> None:
        """Have work done with the lock held: now if it is free, else by the next who has it.

        Never waits; keeps the order.
        """
        if self.lock.acquire(blocking=False):
            try:
                self.take_in()
                work(*arguments)
            finally:
                self.lock.release()
        else:
            self.handed_in.append(partial(work, *arguments))
            self.sender_wakeup.set()

    def take_in_if_free(self) -> bool:
        """Do what was handed in; return False if another thread has the lock. Never waits."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self.take_in()
        finally:
            self.lock.release()
        return True

    def take_in(self) -> None:
        """Do what was handed in; call with the lock held."""
        while self.handed_in:
            self.handed_in.popleft()()

    def take_results(self, max_chunks: int | None) -> list[JobResult]:
        """Return finished jobs, stopping once they have `max_chunks` or more. Never waits."""
        if self.handed_in:
            self.take_in_if_free()
        return take_some(self.results, lambda result: len(result.outcomes), max_chunks)

    @property
    def has_results(self) -> bool:
        """True if `take_results` would return something."""
        return bool(self.results)

    def take_lookups(self, max_keys: int | None) -> list[LookupReply]:
        """Return replies, stopping once they have `max_keys` or more keys. Never waits."""
        if self.lock.acquire(blocking=False):
            try:
                self.take_in()
                self.lookups.expire(time.monotonic(), max_keys)
            finally:
                self.lock.release()
        return take_some(self.lookups.replies, lambda reply: len(reply.verdicts), max_keys)

    def not_sent(self, job_id: int, kind: JobKind, chunks: int, reason: str) -> None:
        """Finish a job that never left this process; call with the lock held."""
        self.counters[f"jobs_not_sent_{reason}"] += 1
        self._notices[reason] += 1
        self._add_results([JobResult(job_id, kind, (Outcome.NOT_SENT,) * chunks)])
        self.sender_wakeup.set()

    def finish_empty(self, job_id: int, kind: JobKind) -> None:
        """Finish a job without chunks; call with the lock held."""
        self._add_results([JobResult(job_id, kind, ())])

    def collect(self) -> None:
        """Move the session's finished jobs over; call with the lock held."""
        if self.session is not None:
            self._add_results(self.session.jobs.take_finished())

    def cancel_queued(self, reason: str) -> None:
        """Fail all jobs that were never sent; call with the lock held."""
        if self.session is None:
            return
        self.collect()
        self.session.jobs.cancel_queued()
        cancelled = self.session.jobs.take_finished()
        self.counters[f"jobs_not_sent_{reason}"] += len(cancelled)
        self._add_results(cancelled)

    def begin_ending(self, session: Session, why: str) -> bool:
        """Stop using a session, its slots still reserved; call with the lock held.

        Returns True the first time: the caller then half-closes the lease, without the lock.
        """
        if session.ending:
            return False
        session.ending = True
        self.last_error = why
        self.counters["sessions_given_up"] += 1
        if session is self.session:
            self.cancel_queued("session_ending")
            self.lookups.end()
            self.changed.notify_all()
        return True

    def give_up(self, session: Session, why: str) -> None:
        """Ask the daemon to end a session that has become useless; call without the lock."""
        with self.lock:
            first = self.begin_ending(session, why)
        if first:
            logger.warning("asking kvferry to end the session: %s", why)
            session.lease.half_close()

    def end_session(self, session: Session) -> int:
        """Release everything after end-of-file on the lease; call with the lock held.

        Returns how many jobs were open.
        """
        lost = session.jobs.open_jobs
        session.jobs.end()
        self._add_results(session.jobs.take_finished())
        self.counters["jobs_lost"] += lost
        self.counters["sessions_ended"] += 1
        self.session = None
        self.lookups.end()
        self.wake_all()
        return lost

    def wake_all(self) -> None:
        """Let every waiting thread look again; call with the lock held."""
        self.sender_wakeup.set()
        self.poller_wakeup.notify_all()
        self.changed.notify_all()

    def due_notice(self, now: float) -> str:
        """Return a line about dropped jobs, at most one per NOTICE_SECONDS; with the lock held."""
        if not self._notices or now < self._next_notice:
            return ""
        self._next_notice = now + NOTICE_SECONDS
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(self._notices.items()))
        self._notices.clear()
        return f"jobs not sent to the daemon: {parts} ({self.last_error or 'no error noted'})"

    def call_failed(self, session: Session, now: float) -> bool:
        """Count a failed call; call with the lock held.

        Returns True if it deserves a line: the first of a streak, in a session that is in use.
        """
        self.counters["calls_failed"] += 1
        first = not self._calls_fail
        self._calls_fail = True
        if not first or session.ending or self.closing or now < self._next_failure_line:
            return False
        self._next_failure_line = now + NOTICE_SECONDS
        return True

    def call_answered(self) -> None:
        """Note that the daemon answered a call, which ends a streak; with the lock held."""
        self._calls_fail = False

    def notice_wait(self, now: float) -> float | None:
        """Seconds until `due_notice` has something to say; None if never; with the lock held."""
        return max(self._next_notice - now, 0.0) if self._notices else None

    def _add_results(self, results: Iterable[JobResult]) -> None:
        for result in results:
            kind = result.kind.name.lower()
            for outcome in result.outcomes:
                self.counters[_CHUNK_COUNTERS[result.kind, outcome]] += 1
            self.counters[f"{kind}_jobs_{'succeeded' if result.success else 'failed'}"] += 1
            self.counters[f"{kind}_bytes"] += result.transferred_bytes
            self.results.append(result)
        self.changed.notify_all()


def take_some(queue: deque[_T], size: Callable[[_T], int], limit: int | None) -> list[_T]:
    """Take items off until their sizes reach `limit`; at least one, if there is one."""
    taken: list[_T] = []
    room = limit
    with contextlib.suppress(IndexError):  # Another thread may take the last one.
        while queue and (room is None or room > 0):
            taken.append(queue.popleft())
            if room is not None:
                room -= max(size(taken[-1]), 1)
    return taken
