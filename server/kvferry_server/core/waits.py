"""Results that wait for polls, and polls and drains that wait for results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .effects import DrainReply, Effect, PollReply
from .states import ChunkState
from .tables import Session
from .types import JobResult


@dataclass(slots=True)
class _Poll:
    poll_id: int
    session: Session
    deadline: float


@dataclass(slots=True)
class _Drain:
    drain_id: int
    session: Session
    deadline: float
    jobs: set[int]
    """Ids of the jobs that had an active chunk when the drain began and still have."""


class Waits:
    """Long polls (one a session) and drains.

    Args:
        max_results: most results in one answer to a poll.
        emit: takes effects in order.
    """

    def __init__(self, max_results: int, emit: Callable[[Effect], None]) -> None:
        self._max_results = max_results
        self._emit = emit
        self._polls: dict[str, _Poll] = {}
        self._drains: dict[int, _Drain] = {}

    def start_poll(self, poll_id: int, session: Session, deadline: float, now: float) -> None:
        """Answer at once if there is a result or no time; an older poll of the session ends."""
        session_id = session.spec.session_id
        older = self._polls.pop(session_id, None)
        if older is not None:
            self._emit(PollReply(older.poll_id, (), superseded=True))
        poll = _Poll(poll_id, session, deadline)
        if session.results or deadline <= now:
            self._answer(poll)
        else:
            self._polls[session_id] = poll

    def cancel_poll(self, poll_id: int) -> None:
        """Forget a poll that nobody waits for."""
        for session_id, poll in list(self._polls.items()):
            if poll.poll_id == poll_id:
                del self._polls[session_id]

    def start_drain(self, drain_id: int, session: Session, deadline: float, now: float) -> None:
        """Wait for the jobs that are active now; what was queued must be cancelled before."""
        jobs = {job.spec.job_id for job in session.jobs.values() if job.counts[ChunkState.ACTIVE]}
        if not jobs or deadline <= now:
            self._emit(DrainReply(drain_id, len(jobs)))
        else:
            self._drains[drain_id] = _Drain(drain_id, session, deadline, jobs)

    def cancel_drain(self, drain_id: int) -> None:
        """Forget a drain that nobody waits for."""
        self._drains.pop(drain_id, None)

    def add_result(self, session: Session, result: JobResult) -> None:
        """A job is terminal: keep its result until acknowledged and wake who waits for it."""
        session.results.append(result)
        self.end_poll(session)
        for drain in [d for d in self._drains.values() if d.session is session]:
            drain.jobs.discard(result.job_id)
            if not drain.jobs:
                del self._drains[drain.drain_id]
                self._emit(DrainReply(drain.drain_id, 0))

    def end_poll(self, session: Session) -> None:
        """Answer the session's poll, if one waits, with what there is."""
        poll = self._polls.pop(session.spec.session_id, None)
        if poll is not None:
            self._answer(poll)

    def tick(self, now: float) -> None:
        """Answer what has waited long enough."""
        for poll in [p for p in self._polls.values() if p.deadline <= now]:
            self.end_poll(poll.session)
        for drain in [d for d in self._drains.values() if d.deadline <= now]:
            del self._drains[drain.drain_id]
            self._emit(DrainReply(drain.drain_id, len(drain.jobs)))

    def next_wakeup(self) -> float | None:
        """The earliest deadline."""
        polls = (poll.deadline for poll in self._polls.values())
        drains = (drain.deadline for drain in self._drains.values())
        return min((*polls, *drains), default=None)

    def _answer(self, poll: _Poll) -> None:
        pairs = zip(range(self._max_results), poll.session.results, strict=False)
        self._emit(PollReply(poll.poll_id, tuple(result for _, result in pairs)))
