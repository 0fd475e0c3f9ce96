"""What the engine promises, as a small model that follows its events and effects.

`Reference.take` gets each event with its effects and asserts every promise that can be seen
from outside; only to whom a transfer belongs it has to be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvferry_server.core import effects, events
from kvferry_server.core.effects import Effect
from kvferry_server.core.events import Event
from kvferry_server.core.states import OUTCOMES, ChunkEvent
from kvferry_server.core.types import (
    Admission,
    BreakerState,
    EngineSettings,
    JobKind,
    JobResult,
    JobSpec,
    LookupGroup,
    ObjectRef,
    Outcome,
    Presence,
    SessionSpec,
    TransferStatus,
)

CONTENT_FAULTS = {TransferStatus.CORRUPT, TransferStatus.WRONG_SIZE}
SUCCESS = {JobKind.STORE: Outcome.STORED, JobKind.LOAD: Outcome.LOADED}


@dataclass
class ModelChunk:
    ref: ObjectRef
    slot: int
    attempts: int = 0
    running: bool = False
    status: TransferStatus | None = None
    """How the last attempt ended."""


@dataclass
class ModelJob:
    spec: JobSpec
    kind: JobKind
    deadline: float
    chunks: list[ModelChunk]
    present_at_submit: list[bool]
    condemned_at_submit: list[bool]
    may_start: bool = True
    reported: bool = False

    @property
    def active(self) -> bool:
        return any(chunk.running for chunk in self.chunks)


@dataclass
class ModelSession:
    spec: SessionSpec
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    unacked: list[JobResult] = field(default_factory=list)
    last_seq: int = 0
    closing: bool = False

    def cancel(self) -> None:
        for job in self.jobs.values():
            job.may_start = False


@dataclass
class ModelLookup:
    session_id: str
    groups: tuple[LookupGroup, ...]
    deadline: float
    refs: list[list[ObjectRef]]
    stored: set[ObjectRef]
    """Objects of it that were known to be stored all the time since it began."""
    condemned: set[ObjectRef]


@dataclass
class ModelDrain:
    session_id: str
    deadline: float
    jobs: list[ModelJob]


@dataclass
class Reference:
    settings: EngineSettings
    owner_of: Callable[[int], int]
    """Id of the job whose chunk a transfer moves: jobs may agree in key and slot."""
    capacity: int = 0
    ready: bool = False
    stopping: bool = False
    paused: dict[JobKind, bool] = field(default_factory=lambda: dict.fromkeys(JobKind, False))
    sessions: dict[str, ModelSession] = field(default_factory=dict)
    running: dict[int, tuple[effects.StartTransfer, ModelSession, ModelJob, ModelChunk, float]] = (
        field(default_factory=dict)
    )
    probing: dict[int, tuple[ObjectRef, ...]] = field(default_factory=dict)
    lookups: dict[int, ModelLookup] = field(default_factory=dict)
    polls: dict[str, tuple[int, float]] = field(default_factory=dict)
    drains: dict[int, ModelDrain] = field(default_factory=dict)
    stored: set[ObjectRef] = field(default_factory=set)
    condemned: set[ObjectRef] = field(default_factory=set)
    evidence: dict[Presence, set[ObjectRef]] = field(
        default_factory=lambda: {presence: set() for presence in Presence}
    )
    probe_began: dict[int, float] = field(default_factory=dict)
    awake: float = 0.0
    last_step: float | None = None
    _older: tuple[int, float] | None = None
    """The poll that the event at hand supersedes."""
    _expected: tuple[Admission, ...] = ()

    def __post_init__(self) -> None:
        self.capacity = self.settings.max_active_chunks

    def take(
        self, event: Event, done: list[Effect], now: float, before: Sequence[Event] = ()
    ) -> None:
        """Follow one step, in which other events may have come before this one, and check it."""
        for each in before:
            self._note_event(each, now)
        self._note_event(event, now)
        self._start_of_awake_time(event, done)
        self._count_awake(now)
        for effect in done:
            self._note_effect(effect, event, now)
        if isinstance(event, events.SubmitJobs):
            assert sum(isinstance(e, effects.SubmitReply) for e in done) == 1
        assert self._older is None, "an older poll is not answered"
        self._check_rest(event, now)

    # -- events

    def _note_event(self, event: Event, now: float) -> None:  # noqa: C901, PLR0912
        match event:
            case events.OpenSession():
                assert not self.stopping
                self.sessions[event.session.session_id] = ModelSession(event.session)
            case events.CloseSession():
                session = self.sessions[event.session_id]
                session.closing = True
                session.cancel()
            case events.SubmitJobs():
                self._expected = self._submitted(event, now)
            case events.StartLookup():
                self._looked_up(event)
            case events.CancelLookup():
                self.lookups.pop(event.lookup_id, None)
            case events.StartPoll():
                session = self.sessions[event.session_id]
                session.unacked = [r for r in session.unacked if r.seq > event.ack_seq]
                open_ids = {r.job_id for r in session.unacked}
                for job_id, job in list(session.jobs.items()):
                    if job.reported and job_id not in open_ids:
                        del session.jobs[job_id]
                self._older = self.polls.pop(event.session_id, None)
                self.polls[event.session_id] = (event.poll_id, event.deadline)
            case events.CancelPoll():
                self.polls = {s: p for s, p in self.polls.items() if p[0] != event.poll_id}
            case events.StartDrain():
                session = self.sessions[event.session_id]
                session.cancel()
                jobs = [job for job in session.jobs.values() if job.active]
                self.drains[event.drain_id] = ModelDrain(event.session_id, event.deadline, jobs)
            case events.CancelDrain():
                self.drains.pop(event.drain_id, None)
            case events.TransferFinished():
                self._transferred(event)
            case events.ProbeFinished():
                self._probed(event)
            case events.StoreReadiness():
                self.ready = event.ready
            case events.Capacity():
                self.capacity = min(event.max_active_chunks, self.settings.max_active_chunks)
            case events.SetPaused():
                for kind, value in ((JobKind.STORE, event.stores), (JobKind.LOAD, event.loads)):
                    if value is not None:
                        self.paused[kind] = value
            case events.Stop():
                self.stopping = True
                for session in self.sessions.values():
                    session.cancel()

    def _submitted(self, event: events.SubmitJobs, now: float) -> tuple[Admission, ...]:
        session = self.sessions[event.session_id]
        assert not self.stopping
        assert not session.closing
        expected = []
        for spec in event.jobs:
            if spec.job_id in session.jobs:
                expected.append(Admission.JOINED)
                continue
            if spec.job_id in session.seen:
                expected.append(Admission.ALREADY_REPORTED)
                continue
            expected.append(Admission.ACCEPTED)
            session.seen.add(spec.job_id)
            refs = [ObjectRef(session.spec.space, key) for key in spec.keys]
            session.jobs[spec.job_id] = ModelJob(
                spec,
                event.kind,
                now + self.settings.transfer_seconds,
                [ModelChunk(r, slot) for r, slot in zip(refs, spec.slots, strict=True)],
                [r in self.stored for r in refs],
                [r in self.condemned for r in refs],
            )
        return tuple(expected)

    def _looked_up(self, event: events.StartLookup) -> None:
        space = self.sessions[event.session_id].spec.space
        refs = [[ObjectRef(space, key) for key in group.keys] for group in event.groups]
        every = {r for group in refs for r in group}
        self.lookups[event.lookup_id] = ModelLookup(
            event.session_id,
            event.groups,
            event.deadline,
            refs,
            every & self.stored,
            every & self.condemned,
        )

    def _transferred(self, event: events.TransferFinished) -> None:
        start, _, _, chunk, _ = self.running.pop(event.transfer_id)
        chunk.running = False
        chunk.status = event.status
        if event.status is TransferStatus.OK and start.kind is JobKind.STORE:
            self.stored.add(start.ref)
            self._not_condemned(start.ref)
            self.evidence[Presence.PRESENT].add(start.ref)
        elif event.status is TransferStatus.MISSING:
            self._not_stored(start.ref)
            self._not_condemned(start.ref)
            self.evidence[Presence.ABSENT].add(start.ref)
        elif event.status in CONTENT_FAULTS:
            self._not_stored(start.ref)
            self.condemned.add(start.ref)
            self.evidence[Presence.ABSENT].add(start.ref)

    def _probed(self, event: events.ProbeFinished) -> None:
        refs = self.probing.pop(event.probe_id)
        del self.probe_began[event.probe_id]
        for ref, verdict in zip(refs, event.verdicts, strict=True):
            self.evidence[verdict].add(ref)
            if verdict is Presence.ABSENT:
                self._not_condemned(ref)

    def _not_stored(self, ref: ObjectRef) -> None:
        self.stored.discard(ref)
        for lookup in self.lookups.values():
            lookup.stored.discard(ref)

    def _not_condemned(self, ref: ObjectRef) -> None:
        self.condemned.discard(ref)
        for lookup in self.lookups.values():
            lookup.condemned.discard(ref)

    # -- effects

    def _note_effect(self, effect: Effect, event: Event, now: float) -> None:
        match effect:
            case effects.StartTransfer():
                self._check_start(effect, now)
            case effects.StartProbe():
                self._check_probe(effect)
            case effects.SubmitReply():
                assert isinstance(event, events.SubmitJobs)
                assert effect.admissions == self._expected
            case effects.LookupReply():
                self._check_lookup_reply(effect)
            case effects.PollReply():
                self._check_poll_reply(effect, event, now)
            case effects.DrainReply():
                drain = self.drains.pop(effect.drain_id)
                active = sum(job.active for job in drain.jobs)
                assert effect.running_jobs == active
                assert active == 0 or drain.deadline <= now
            case effects.SessionQuiet():
                self._check_quiet(effect)
            case effects.JobFinished():
                self._check_job(effect, now)

    def _check_start(self, start: effects.StartTransfer, now: float) -> None:
        session = self.sessions[start.session_id]
        job = session.jobs[self.owner_of(start.transfer_id)]
        (chunk,) = [c for c in job.chunks if (c.ref, c.slot) == (start.ref, start.slot)]
        assert job.kind is start.kind
        assert job.may_start, "a start after a drain, the session's end or a stop"
        assert not job.reported
        assert not chunk.running
        assert chunk.attempts == start.attempt - 1
        assert start.attempt == 1 or chunk.status is TransferStatus.UNAVAILABLE
        assert not session.closing
        assert not self.stopping
        assert self.ready
        assert not self.paused[start.kind]
        assert start.transfer_id not in self.running
        assert len(self.running) < self.capacity
        assert start.attempt <= self.settings.max_attempts
        assert now < job.deadline
        for other, owner, *_ in self.running.values():
            if owner is session and other.slot == start.slot:
                assert other.kind is start.kind is JobKind.STORE
            if other.kind is start.kind is JobKind.STORE:
                assert other.ref != start.ref
        chunk.attempts += 1
        chunk.running = True
        self.running[start.transfer_id] = (start, session, job, chunk, self.awake)

    def _check_probe(self, probe: effects.StartProbe) -> None:
        assert probe.probe_id not in self.probing
        assert 0 < len(probe.refs) <= self.settings.probe_batch
        assert self.ready
        assert not self.stopping
        assert not self.paused[JobKind.LOAD]
        in_flight = {r for refs in self.probing.values() for r in refs}
        assert not in_flight & set(probe.refs), "two probes of one object"
        assert len(in_flight) + len(probe.refs) <= self.settings.max_probing_keys
        wanted = {r for one in self.lookups.values() for refs in one.refs for r in refs}
        assert set(probe.refs) <= wanted, "a probe that nobody wants"
        self.probing[probe.probe_id] = probe.refs
        self.probe_began[probe.probe_id] = self.awake

    def _check_lookup_reply(self, reply: effects.LookupReply) -> None:
        lookup = self.lookups.pop(reply.lookup_id)
        assert [len(v) for v in reply.verdicts] == [len(g.keys) for g in lookup.groups]
        for verdicts, refs, group in zip(reply.verdicts, lookup.refs, lookup.groups, strict=True):
            for ref, verdict in zip(refs, verdicts, strict=True):
                assert verdict is Presence.UNKNOWN or ref in self.evidence[verdict]
                assert not (ref in lookup.stored and verdict is Presence.ABSENT)
                assert not (ref in lookup.condemned and verdict is Presence.PRESENT)
            misses = [at for at, v in enumerate(verdicts) if v is not Presence.PRESENT]
            if group.prefix_ordered and misses:
                assert set(verdicts[misses[0] + 1 :]) <= {Presence.UNKNOWN}

    def _check_poll_reply(self, reply: effects.PollReply, event: Event, now: float) -> None:
        if reply.superseded:
            assert isinstance(event, events.StartPoll)
            assert self._older is not None
            assert self._older[0] == reply.poll_id
            assert reply.results == ()
            self._older = None
            return
        ((session_id, (_, deadline)),) = [
            item for item in self.polls.items() if item[1][0] == reply.poll_id
        ]
        del self.polls[session_id]
        session = self.sessions[session_id]
        most = self.settings.max_results_per_poll
        assert list(reply.results) == session.unacked[:most]
        assert reply.results or deadline <= now or session.closing

    def _check_quiet(self, quiet: effects.SessionQuiet) -> None:
        session = self.sessions.pop(quiet.session_id)
        assert session.closing
        assert not any(owner is session for _, owner, *_ in self.running.values())
        assert all(job.reported for job in session.jobs.values())
        assert quiet.session_id not in self.polls

    def _check_job(self, finished: effects.JobFinished, now: float) -> None:
        session = self.sessions[finished.session_id]
        result = finished.result
        job = session.jobs[result.job_id]
        assert not job.reported, "reported twice"
        assert not job.active, "reported with an active chunk"
        assert result.seq == session.last_seq + 1
        assert result.kind is job.kind
        assert len(result.outcomes) == len(job.chunks)
        for at, (chunk, outcome) in enumerate(zip(job.chunks, result.outcomes, strict=True)):
            assert outcome in self._possible(job, chunk), (chunk, outcome)
            assert outcome is not Outcome.EXPIRED or now >= job.deadline
            if job.kind is JobKind.STORE:
                assert (outcome is Outcome.SKIPPED_PRESENT) >= job.present_at_submit[at]
                assert (outcome is Outcome.SKIPPED_PRESENT) <= (not job.condemned_at_submit[at])
        moved = result.outcomes.count(SUCCESS[job.kind])
        assert result.transferred_bytes == moved * session.spec.slot_bytes
        job.reported = True
        session.last_seq = result.seq
        session.unacked.append(result)

    @staticmethod
    def _possible(job: ModelJob, chunk: ModelChunk) -> frozenset[Outcome]:
        dropped = OUTCOMES[job.kind, ChunkEvent.DROP]
        if chunk.status is None:
            return dropped
        if chunk.status is TransferStatus.OK:
            return frozenset({SUCCESS[job.kind]})
        ended = frozenset({Outcome[chunk.status.name]})
        if chunk.status is TransferStatus.UNAVAILABLE:
            skips = {Outcome.SKIPPED_PRESENT, Outcome.SKIPPED_IN_FLIGHT}
            return ended | (dropped - skips)
        return ended

    # -- what holds between steps

    def _start_of_awake_time(self, event: Event, done: list[Effect]) -> None:
        """A Tick aborts exactly when the oldest transfer or probe is over the limit, as ticked."""
        ages = [self.awake - began for *_, began in self.running.values()]
        ages += [self.awake - began for began in self.probe_began.values()]
        too_old = max(ages, default=0.0) >= self.settings.hard_deadline_seconds
        aborts = any(isinstance(effect, effects.Abort) for effect in done)
        assert aborts == (too_old and isinstance(event, events.Tick))

    def _count_awake(self, now: float) -> None:
        if self.last_step is not None:
            self.awake += min(now - self.last_step, 1.0)
        self.last_step = now

    def _check_rest(self, event: Event, now: float) -> None:
        for name, session in self.sessions.items():
            owned = [1 for _, owner, *_ in self.running.values() if owner is session]
            assert owned or not session.closing, "a quiet session is not said to be so"
            assert name not in self.polls or not session.unacked, "a poll sleeps on results"
            for job in session.jobs.values():
                overdue = isinstance(event, events.Tick) and now >= job.deadline
                refused = not job.may_start or self.paused[job.kind] or not self.ready
                if overdue or refused:
                    assert job.active or job.reported, "a job is forgotten"
        for drain in self.drains.values():
            assert any(job.active for job in drain.jobs), "a drain sleeps"
        if isinstance(event, events.Tick):
            assert all(one.deadline > now for one in self.lookups.values())
            assert all(deadline > now for _, deadline in self.polls.values())
            assert all(drain.deadline > now for drain in self.drains.values())
        if not self.ready or self.paused[JobKind.LOAD] or self.stopping:
            assert not self.lookups

    def check_breakers(
        self, states: dict[JobKind, BreakerState], done: list[Effect], queued: dict[JobKind, int]
    ) -> None:
        """What may start behind a breaker in the state it has after the step."""
        starts = Counter(e.kind for e in done if isinstance(e, effects.StartTransfer))
        starts[JobKind.LOAD] += sum(isinstance(e, effects.StartProbe) for e in done)
        for kind, state in states.items():
            if state is BreakerState.OPEN:
                assert starts[kind] == queued[kind] == 0
            elif state is BreakerState.HALF_OPEN:
                assert starts[kind] <= 1
