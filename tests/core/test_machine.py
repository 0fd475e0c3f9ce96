"""The real engine against `Reference`, in arbitrary worlds and arbitrary orders of events."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kvferry_server.core import events
from kvferry_server.core.engine import Engine
from kvferry_server.core.errors import IllegalTransition, KvferryError
from kvferry_server.core.states import ChunkState
from kvferry_server.core.types import (
    EngineSettings,
    JobKind,
    JobSpec,
    LookupGroup,
    Presence,
    RequestContext,
    SessionSpec,
    TransferStatus,
)

from .reference import CONTENT_FAULTS, Reference
from .world import ABSENT, LOAD, OK, PRESENT, STORE, UNAVAILABLE, UNKNOWN, key, snapshot

SLOTS = 10
SLOT_BYTES = 100
SPACES = {"s": "ns", "t": "ns", "u": "other"}
SETTINGS = EngineSettings(
    max_active_chunks=4,
    max_queued_store_bytes=4 * SLOT_BYTES,
    max_open_jobs=8,
    max_results_per_poll=3,
    transfer_seconds=15.0,
    hard_deadline_seconds=20.0,
    max_attempts=3,
    backoff_base_seconds=1.0,
    backoff_cap_seconds=3.0,
    breaker_failures=3,
    breaker_cooldown_seconds=5.0,
    present_seconds=1e9,
    condemned_seconds=1e9,
    absent_seconds=2.0,
    probe_wave=2,
    probe_batch=2,
    max_probing_keys=4,
)
REQUESTS = (
    events.OpenSession,
    events.SubmitJobs,
    events.StartLookup,
    events.StartPoll,
    events.StartDrain,
)

names = st.sampled_from("abcdefg").map(key)
sessions = st.sampled_from(sorted(SPACES))
numbers = st.integers(0, 50)
waits = st.sampled_from([0.0, 0.05, 0.4, 1.0, 3.0, 6.0, 20.0, 300.0])
chunks = st.lists(
    st.tuples(names, st.integers(0, SLOTS - 1)),
    min_size=1,
    max_size=4,
    unique_by=(lambda pair: pair[0], lambda pair: pair[1]),
)
statuses = st.sampled_from([OK, OK, OK, UNAVAILABLE, UNAVAILABLE, *TransferStatus])
key_lists = st.lists(names, max_size=7).map(tuple)
groups = st.builds(LookupGroup, key_lists, st.booleans())
submissions = st.lists(
    st.tuples(chunks, st.sampled_from([0, 0, 0, 0, 1, -1]), st.integers(-1, 1)),
    min_size=1,
    max_size=3,
)
operator_events = st.sampled_from(
    [
        events.SetPaused(stores=True),
        events.SetPaused(loads=True),
        events.StoreReadiness(ready=False),
        *map(events.Capacity, range(6)),
        events.Stop(),
    ]
)


class Driver(RuleBasedStateMachine):
    """Sends events; `Reference` and the checks below judge."""

    def __init__(self):
        super().__init__()
        self.engine = Engine(SETTINGS)
        active = self.engine._transfers._active
        self.model = Reference(SETTINGS, lambda number: active[number].chunk.job.spec.job_id)
        self.now = 100.0
        self.ids = 0
        self.send(events.StoreReadiness(ready=True))

    @staticmethod
    def spec(name):
        return SessionSpec(name, "e", SPACES[name], SLOTS, SLOT_BYTES)

    def send(self, event):
        before = snapshot(self.engine) if isinstance(event, REQUESTS) else b""
        try:
            done = self.engine.step(event, self.now)
        except KvferryError:
            assert snapshot(self.engine) == before, "a refused request changed something"
            return
        self.judge(event, done)

    def send_together(self, together):
        done = self.engine.step_all(together, self.now)
        *before, event = together
        self.judge(event, done, before)

    def judge(self, event, done, before=()):
        self.model.take(event, done, self.now, before)
        states = self.engine.breaker_states(self.now)
        self.model.check_breakers(states, done, self.engine.queued)
        self.check_engine(event)

    def check_engine(self, event):
        """The engine's own books agree with each other and with the model."""
        engine, model = self.engine, self.model
        transfers, lookups = engine._transfers, engine._lookups
        open_chunks = [
            chunk
            for session in engine._sessions.values()
            for job in session.jobs.values()
            for chunk in job.chunks
            if chunk.state is not ChunkState.DONE
        ]
        count = Counter((chunk.state, chunk.job.kind) for chunk in open_chunks)
        assert engine.queued == {k: count[ChunkState.QUEUED, k] for k in JobKind}
        assert engine.active == {k: count[ChunkState.ACTIVE, k] for k in JobKind}
        running = Counter(start.kind for start, *_ in model.running.values())
        assert engine.active == {k: running[k] for k in JobKind}
        assert engine.queued_store_bytes == SLOT_BYTES * engine.queued[STORE]
        bound = SETTINGS.max_queued_store_bytes + SETTINGS.max_active_chunks * SLOT_BYTES
        assert engine.queued_store_bytes <= bound
        assert transfers._storing == {c.ref for c in open_chunks if c.job.kind is STORE}
        for session in engine._sessions.values():
            mine = [c for c in open_chunks if c.job.session is session]
            assert session.loading_slots == {c.slot for c in mine if c.job.kind is LOAD}
            storing = Counter(c.slot for c in mine if c.job.kind is STORE)
            assert session.storing_slots == storing
            assert session.active_chunks == sum(c.state is ChunkState.ACTIVE for c in mine)
        self.check_nothing_idles(transfers)
        assert set(lookups._open) == set(model.lookups)
        assert set(lookups._sent) == {r for refs in model.probing.values() for r in refs}
        assert all(probing.waiters for probing in lookups._unsent.values())
        for probing in [*lookups._unsent.values(), *lookups._sent.values()]:
            assert {g.lookup.lookup_id for g, _ in probing.waiters} <= set(model.lookups)
        self.check_wakeup(event)

    def check_nothing_idles(self, transfers):
        """What could start has started."""
        if sum(transfers.active.values()) >= transfers.capacity:
            return
        waiting = {
            kind: any(
                entry[3].state is ChunkState.QUEUED
                for heap in queue._by_session.values()
                for entry in heap
            )
            for kind, queue in transfers._queue.kinds.items()
        }
        assert not waiting[LOAD]
        most = transfers._window.limit(transfers.capacity, self.now)
        assert not waiting[STORE] or transfers.active[STORE] >= most

    def check_wakeup(self, event):
        due = self.engine.next_wakeup(self.now)
        model = self.model
        if isinstance(event, events.Tick):
            assert due is None or due > self.now, "the loop would spin"
        deadlines = [one.deadline for one in model.lookups.values()]
        deadlines += [deadline for _, deadline in model.polls.values()]
        deadlines += [drain.deadline for drain in model.drains.values()]
        deadlines += [
            job.deadline
            for session in model.sessions.values()
            for job in session.jobs.values()
            if not job.reported and not job.active
        ]
        if deadlines:
            assert due is not None
            assert due <= max(self.now, min(deadlines))
        if model.running or model.probing:
            assert due is not None
            assert due <= self.now + 1.0

    def pick(self, mapping, number):
        return list(mapping)[number % len(mapping)]

    # -- sessions and requests

    def ensure(self, name):
        """Open the session if it isn't there."""
        if name not in self.model.sessions:
            self.send(events.OpenSession(self.spec(name)))
        return name in self.model.sessions

    def submit(self, name, kind, jobs):
        if not self.ensure(name):
            return
        next_id = max(self.model.sessions[name].seen, default=0) + 1
        specs = []
        for pairs, shift, priority in jobs:
            keys, slots = zip(*pairs, strict=True)
            specs.append(JobSpec(next_id + shift, keys, slots, RequestContext("r", priority)))
            next_id += 1
        self.send(events.SubmitJobs(name, kind, tuple(specs)))

    def illegal(self, event):
        before = snapshot(self.engine)
        with pytest.raises(IllegalTransition):
            self.engine.step(event, self.now)
        assert snapshot(self.engine) == before

    def teardown(self):
        """End everything: nothing may be left in any table."""
        for name in list(self.model.sessions):
            self.send(events.CloseSession(name))
        while self.model.running:
            self.send(events.TransferFinished(next(iter(self.model.running)), OK))
        while self.model.probing:
            probe_id, refs = next(iter(self.model.probing.items()))
            self.send(events.ProbeFinished(probe_id, (ABSENT,) * len(refs)))
        self.now += 1000.0
        self.send(events.Tick())
        while self.model.probing:
            probe_id, refs = next(iter(self.model.probing.items()))
            self.send(events.ProbeFinished(probe_id, (ABSENT,) * len(refs)))
        engine = self.engine
        transfers, lookups, others = engine._transfers, engine._lookups, engine._waits
        assert not self.model.sessions
        assert not engine._sessions
        assert not transfers._active
        assert not transfers._storing
        assert not transfers._by_deadline
        assert [len(queue) for queue in transfers._queue.kinds.values()] == [0, 0]
        assert transfers._unfinished_jobs == 0
        assert not lookups._open
        assert not lookups._sent
        assert not lookups._unsent
        assert not lookups._probes
        assert not others._polls
        assert not others._drains
        assert engine.next_wakeup(self.now) is None
        assert all(value >= 0 for value in engine.counters.values())


class Transferring(Driver):
    """Stores and loads, and how their transfers end."""

    @rule(name=sessions, jobs=submissions)
    def store(self, name, jobs):
        self.submit(name, STORE, jobs)

    @rule(name=sessions, jobs=submissions)
    def load(self, name, jobs):
        self.submit(name, LOAD, jobs)

    @precondition(lambda self: self.model.running)
    @rule(number=numbers, status=statuses)
    def finish_transfer(self, number, status):
        transfer_id = self.pick(self.model.running, number)
        kind = self.model.running[transfer_id][0].kind
        event = events.TransferFinished(transfer_id, status)
        if kind is STORE and status in {TransferStatus.MISSING, *CONTENT_FAULTS}:
            self.illegal(event)
        else:
            self.send(event)

    @precondition(lambda self: self.model.running)
    @rule(status=st.sampled_from([OK, UNAVAILABLE]))
    def finish_running_transfers(self, status):
        for transfer_id in list(self.model.running):
            self.send(events.TransferFinished(transfer_id, status))

    @precondition(lambda self: self.model.running)
    @rule(some=st.lists(st.sampled_from([OK, UNAVAILABLE]), min_size=1, max_size=4))
    def finish_transfers_together(self, some):
        pairs = zip(list(self.model.running), some, strict=False)
        self.send_together([events.TransferFinished(*pair) for pair in pairs])


class Asking(Driver):
    """Lookups, and how their probes end."""

    @rule(name=sessions, spec=st.lists(groups, min_size=1, max_size=3), seconds=waits)
    def lookup(self, name, spec, seconds):
        self.ids += 1
        if not self.ensure(name):
            return
        self.send(events.StartLookup(self.ids, name, tuple(spec), self.now + seconds))

    @precondition(lambda self: self.model.probing)
    @rule(verdict=st.sampled_from([PRESENT, ABSENT]))
    def finish_all_probes_together(self, verdict):
        answers = [(number, (verdict,) * len(refs)) for number, refs in self.model.probing.items()]
        self.send_together([events.ProbeFinished(*answer) for answer in answers])

    @precondition(lambda self: self.model.probing)
    @rule(
        number=numbers,
        verdicts=st.lists(st.sampled_from(Presence), min_size=2, max_size=2),
        failed=st.sampled_from([False, False, True]),
    )
    def finish_probe(self, number, verdicts, failed):
        probe_id = self.pick(self.model.probing, number)
        count = len(self.model.probing[probe_id])
        answer = (UNKNOWN,) * count if failed else tuple(verdicts[:count])
        self.send(events.ProbeFinished(probe_id, answer, failed))


class Waiting(Driver):
    """Polls, drains and callers that go away."""

    @precondition(lambda self: self.model.sessions)
    @rule(number=numbers, back=st.sampled_from([0, 0, 1, 2, -1]), seconds=waits)
    def poll(self, number, back, seconds):
        self.ids += 1
        name = self.pick(self.model.sessions, number)
        ack = max(0, self.model.sessions[name].last_seq - back)
        self.send(events.StartPoll(self.ids, name, ack, self.now + seconds))

    @precondition(lambda self: self.model.running and self.model.sessions)
    @rule(number=numbers, seconds=waits)
    def drain(self, number, seconds):
        self.ids += 1
        name = self.pick(self.model.sessions, number)
        self.send(events.StartDrain(self.ids, name, self.now + seconds))

    @precondition(lambda self: self.model.lookups or self.model.polls or self.model.drains)
    @rule(number=numbers)
    def cancel(self, number):
        choices = [events.CancelLookup(each) for each in self.model.lookups]
        choices += [events.CancelPoll(poll_id) for poll_id, _ in self.model.polls.values()]
        choices += [events.CancelDrain(each) for each in self.model.drains]
        self.send(choices[number % len(choices)])


class Passing(Driver):
    """Time."""

    @rule(seconds=waits, seen=st.booleans())
    def time_passes(self, seconds, seen):
        self.now += seconds
        if seen:
            self.send(events.Tick())

    @rule(steps=st.integers(1, 30))
    def live(self, steps):
        for _ in range(steps):
            self.now += 0.9
            self.send(events.Tick())


class Meddling(Driver):
    """Sessions that end, operators, and a world that answers what was never asked."""

    @precondition(lambda self: self.model.sessions)
    @rule(number=numbers)
    def close_session(self, number):
        self.send(events.CloseSession(self.pick(self.model.sessions, number)))

    @rule(number=numbers)
    def answer_what_was_never_asked(self, number):
        if number not in self.model.running:
            self.illegal(events.TransferFinished(number, OK))
        if number not in self.model.probing:
            self.illegal(events.ProbeFinished(number, (PRESENT,)))

    @rule(event=operator_events, back=st.booleans())
    def operator(self, event, back):
        """Most troubles end soon, so that other rules find a working engine."""
        if isinstance(event, events.Stop) and self.ids < 6:
            return
        self.send(event)
        if back:
            self.send(events.SetPaused(stores=False, loads=False))
            self.send(events.StoreReadiness(ready=True))
            self.send(events.Capacity(4))


class JobMachine(Transferring, Waiting, Passing):
    """Jobs from their admission to the acknowledgement."""


class PresenceMachine(Transferring, Asking, Passing):
    """What lookups say while objects are stored, loaded and found damaged."""


class EngineMachine(Transferring, Asking, Waiting, Passing, Meddling):
    """All at once."""


TestJobs = JobMachine.TestCase
TestPresence = PresenceMachine.TestCase
TestEngine = EngineMachine.TestCase
