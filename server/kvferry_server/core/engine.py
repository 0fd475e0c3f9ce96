"""The daemon's state machine: events in, effects out.

Memory: holds counts, names and slot numbers, never bytes of a region.
Lifecycle: a session lives from `OpenSession` until the effect `SessionQuiet`; a job from
its admission until its result is acknowledged.
Failure: a request that is refused raises a `KvferryError` and changes nothing; an event
that can't happen raises `IllegalTransition` and changes nothing.
Threading: none; the caller serialises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import assert_never

from . import checks, effects, events
from .admission import WITHHOLDING
from .effects import Effect
from .errors import FailedPrecondition, IllegalTransition, NotFound, Unavailable
from .events import Event
from .lookups import Lookups
from .presence import PresenceTable
from .states import outcomes_of
from .tables import Job, Session
from .transfers import Transfers
from .types import (
    Admission,
    BreakerState,
    EngineSettings,
    JobKind,
    JobResult,
    Outcome,
    Presence,
    Refusal,
    SessionSpec,
    VerdictSource,
)
from .views import JobView, SessionView, view_job, view_session
from .waits import Waits


class Engine:
    """Sessions, jobs, results, polls and drains, around `Transfers` and `Lookups`."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.counters: Counter[str] = Counter()
        self._out: list[Effect] = []
        self._sessions: dict[str, Session] = {}
        self._closing: dict[str, Session] = {}
        self._stopping = False
        self._waits = Waits(settings.max_results_per_poll, self._out.append)
        self._presence = PresenceTable(settings)
        self._transfers = Transfers(
            settings, self._presence, self.counters, self._out.append, self._job_finished
        )
        self._lookups = Lookups(
            settings,
            self._presence,
            self._transfers.breakers[JobKind.LOAD],
            self._transfers.load_pace,
            self.counters,
            self._out.append,
        )
        self._breaker_states = dict.fromkeys(JobKind, BreakerState.CLOSED)
        for name in _counter_names():
            self.counters[name] = 0

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take in one event.

        Args:
            event: what happened.
            now: monotonic seconds, never less than before.

        Returns:
            What to do, in order.

        Raises:
            KvferryError: the request is refused; nothing changed.
            IllegalTransition: a bug of the caller; nothing changed.
        """
        return self.step_all((event,), now)

    def step_all(self, together: Sequence[Event], now: float) -> list[Effect]:
        """Take in events that came together, in their order; else as `step`.

        If one of several raises, those before it have happened, and their effects come with the
        next step.
        """
        for event in together:
            self._handle(event, now)
        self._transfers.note_step(now)
        self._transfers.pump(now)
        self._lookups.pump(now, self._transfers.awake_seconds)
        self._quiet_sessions()
        self._report_breakers(now)
        out = self._out[:]
        self._out.clear()
        return out

    def next_wakeup(self, now: float) -> float | None:
        """When a `Tick` is due, in the clock of `step`; None if only events matter."""
        times = [
            self._transfers.next_wakeup(now),
            self._lookups.next_wakeup(now),
            self._waits.next_wakeup(),
        ]
        for kind, breaker in self._transfers.breakers.items():
            if self._breaker_states[kind] is BreakerState.OPEN:
                times.append(breaker.wakeup())
        return min((at for at in times if at is not None), default=None)

    def _handle(self, event: Event, now: float) -> None:  # noqa: C901, PLR0912 -- a flat table
        match event:
            case events.OpenSession():
                self._open_session(event.session, now)
            case events.CloseSession():
                self._close_session(event.session_id, now)
            case events.SubmitJobs():
                self._submit(event, now)
            case events.StartLookup():
                self._start_lookup(event, now)
            case events.CancelLookup():
                self._lookups.cancel(event.lookup_id)
            case events.StartPoll():
                self._start_poll(event, now)
            case events.CancelPoll():
                self._waits.cancel_poll(event.poll_id)
            case events.StartDrain():
                self._start_drain(event, now)
            case events.CancelDrain():
                self._waits.cancel_drain(event.drain_id)
            case events.TransferFinished():
                self._transfer_finished(event, now)
            case events.ProbeFinished():
                self._lookups.finished(event, now)
            case events.StoreReadiness():
                self._transfers.set_ready(ready=event.ready)
                self._update_lookups()
            case events.Capacity():
                self._transfers.capacity = min(
                    self.settings.max_active_chunks, event.max_active_chunks
                )
            case events.SetPaused():
                self._set_paused(event)
            case events.Stop():
                self._stop(now)
            case events.Tick():
                self._tick(now)
            case _:
                assert_never(event)

    def sessions(self) -> list[SessionView]:
        """The attached regions, oldest first."""
        return [view_session(session) for session in self._sessions.values()]

    def jobs(self, session_id: str = "", limit: int = 1000) -> list[JobView]:
        """Jobs that are not yet acknowledged, in the order of acceptance within a session."""
        chosen = (
            view_job(job)
            for session in self._sessions.values()
            if session_id in {"", session.spec.session_id}
            for job in session.jobs.values()
        )
        return list(islice(chosen, limit))

    @property
    def queued(self) -> dict[JobKind, int]:
        """Queued chunks by kind."""
        return dict(self._transfers.queued)

    @property
    def active(self) -> dict[JobKind, int]:
        """Chunks in transfer by kind."""
        return dict(self._transfers.active)

    @property
    def queued_store_bytes(self) -> int:
        """Bytes of queued store chunks."""
        return self._transfers.queued_store_bytes

    @property
    def capacity(self) -> int:
        """Most chunks in transfer at once."""
        return self._transfers.capacity

    @property
    def oldest_active_seconds(self) -> float:
        """Age of the oldest running transfer, pauses of the process not counted."""
        return self._transfers.oldest_active_seconds()

    @property
    def presence_entries(self) -> int:
        """Size of the existence index."""
        return len(self._presence)

    @property
    def offer_entries(self) -> int:
        """Keys whose offers the admission settings have counted."""
        return self._transfers.offer_entries

    @property
    def open_lookups(self) -> int:
        """Lookups that are not yet answered."""
        return len(self._lookups)

    @property
    def store_ready(self) -> bool:
        """Whether a preflight has passed."""
        return self._transfers.store_ready

    @property
    def paused(self) -> dict[JobKind, bool]:
        """What an operator has switched off."""
        return dict(self._transfers.paused)

    def breaker_states(self, now: float) -> dict[JobKind, BreakerState]:
        """The write breaker under STORE, the read breaker under LOAD."""
        return {kind: b.state(now) for kind, b in self._transfers.breakers.items()}

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(
                "unknown session: it has ended or belongs to an earlier daemon; attach again"
                " once the lease is at end-of-file",
                reason="UNKNOWN_SESSION",
                field="session.session_id",
            )
        return session

    def _open_session(self, spec: SessionSpec, now: float) -> None:
        if self._stopping:
            raise Unavailable("the daemon is stopping", reason="STOPPING")
        if spec.session_id in self._sessions:
            raise IllegalTransition("the session exists")
        self._sessions[spec.session_id] = Session(spec, opened_at=now)
        self.counters["sessions_opened"] += 1

    def _close_session(self, session_id: str, now: float) -> None:
        session = self._session(session_id)
        session.closing = True
        self._closing[session_id] = session
        self._transfers.cancel(session, now)
        self._lookups.answer_session(session_id)

    def _submit(self, event: events.SubmitJobs, now: float) -> None:
        session = self._session(event.session_id)
        if self._stopping:
            raise Unavailable("the daemon is stopping", reason="STOPPING")
        if session.closing:
            raise FailedPrecondition("the session is ending", reason="SESSION_ENDING")
        checks.check_jobs(session, event.kind, event.jobs, self.settings)
        admissions = []
        for spec in event.jobs:
            if spec.job_id in session.jobs:
                admissions.append(Admission.JOINED)
            elif spec.job_id in session.seen:
                admissions.append(Admission.ALREADY_REPORTED)
            else:
                self._transfers.admit(session, event.kind, spec, now)
                admissions.append(Admission.ACCEPTED)
        self._out.append(effects.SubmitReply(tuple(admissions)))

    def _start_lookup(self, event: events.StartLookup, now: float) -> None:
        session = self._session(event.session_id)
        checks.check_groups(event.groups, self.settings)
        self._lookups.start(event, session.spec.space, now)

    def _start_poll(self, event: events.StartPoll, now: float) -> None:
        session = self._session(event.session_id)
        checks.check_ack(event.ack_seq, session.last_seq)
        session.acknowledge(event.ack_seq)
        self._waits.start_poll(event.poll_id, session, event.deadline, now)

    def _start_drain(self, event: events.StartDrain, now: float) -> None:
        session = self._session(event.session_id)
        self._transfers.cancel(session, now)
        self._waits.start_drain(event.drain_id, session, event.deadline, now)

    def _transfer_finished(self, event: events.TransferFinished, now: float) -> None:
        ref = self._transfers.finished(event.transfer_id, event.status, now)
        if ref is not None:
            self._lookups.outdate(ref)

    def _job_finished(self, job: Job, now: float) -> None:
        session = job.session
        session.last_seq += 1
        outcomes = tuple(chunk.outcome for chunk in job.chunks if chunk.outcome is not None)
        moved = outcomes.count(Outcome.STORED) + outcomes.count(Outcome.LOADED)
        result = JobResult(
            seq=session.last_seq,
            job_id=job.spec.job_id,
            kind=job.kind,
            outcomes=outcomes,
            transferred_bytes=moved * session.spec.slot_bytes,
            transfer_seconds=0.0 if job.first_start is None else now - job.first_start,
        )
        self.counters[f"jobs_{job.kind.name.lower()}"] += 1
        self._out.append(
            effects.JobFinished(
                session.spec.session_id, job.spec.context.request_id, result, job.withheld
            )
        )
        self._waits.add_result(session, result)

    def _set_paused(self, event: events.SetPaused) -> None:
        for kind, paused in ((JobKind.STORE, event.stores), (JobKind.LOAD, event.loads)):
            if paused is not None:
                self._transfers.paused[kind] = paused
        self._update_lookups()

    def _update_lookups(self) -> None:
        transfers = self._transfers
        self._lookups.available = (
            transfers.store_ready and not transfers.paused[JobKind.LOAD] and not self._stopping
        )
        if not self._lookups.available:
            self._lookups.answer_all()

    def _stop(self, now: float) -> None:
        self._stopping = True
        for session in self._sessions.values():
            self._transfers.cancel(session, now)
        self._update_lookups()

    def _tick(self, now: float) -> None:
        self._transfers.tick(now)
        self._lookups.tick(now, self._transfers.awake_seconds)
        self._waits.tick(now)

    def _quiet_sessions(self) -> None:
        """Forget closed sessions that nothing touches any more."""
        for session_id, session in list(self._closing.items()):
            if session.active_chunks:
                continue
            self._waits.end_poll(session)
            self._transfers.forget(session)
            del self._sessions[session_id], self._closing[session_id]
            self.counters["sessions_closed"] += 1
            self._out.append(effects.SessionQuiet(session_id))

    def _report_breakers(self, now: float) -> None:
        for kind, state in self.breaker_states(now).items():
            if state is not self._breaker_states[kind]:
                self._breaker_states[kind] = state
                self._out.append(effects.BreakerChanged(kind, state))


VERDICTS = (
    (Presence.PRESENT, VerdictSource.INDEX),
    (Presence.PRESENT, VerdictSource.PROBE),
    (Presence.ABSENT, VerdictSource.INDEX),
    (Presence.ABSENT, VerdictSource.PROBE),
    (Presence.UNKNOWN, VerdictSource.PROBE),
    (Presence.UNKNOWN, VerdictSource.CUTOFF),
)
"""What a lookup can answer, and from what."""


def refusals_of(kind: JobKind) -> list[Refusal]:
    """Why a chunk of this kind can end without a transfer."""
    stores_only = WITHHOLDING | {Refusal.QUEUE_FULL}
    return [each for each in Refusal if kind is JobKind.STORE or each not in stores_only]


def _counter_names() -> Iterator[str]:
    """Every counter of the engine, so that all exist from the start."""
    for kind in JobKind:
        name = kind.name.lower()
        yield from (f"jobs_{name}", f"bytes_{name}", f"retries_{name}")
        for outcome in outcomes_of(kind):
            yield f"chunks_{name}_{outcome.name.lower()}"
        for refusal in refusals_of(kind):
            yield f"refused_{name}_{refusal}"
    for verdict, source in VERDICTS:
        yield f"verdicts_{verdict.name.lower()}_{source}"
    yield from ("lookups_expired", "lookups_too_slow", "probed_keys", "probe_errors")
    yield from ("sessions_opened", "sessions_closed")
