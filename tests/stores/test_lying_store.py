"""Model check: the real engine and the real integrity rules over a store that can't be trusted.

The simulated store reorders, delays, fails and lies: it loses what it confirmed, tears, shortens,
damages, and hands out older versions. Its loads write into real slot bytes piece by piece until
they are over. The reference is a few lines: which content was stored last, and which slots are
reported and must not change.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvferry_server.adapters import integrity
from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
from kvferry_server.adapters.nixl_steps import Move
from kvferry_server.adapters.stored_checksums import ObjectFacts
from kvferry_server.core import events, tables
from kvferry_server.core.effects import JobFinished, StartTransfer
from kvferry_server.core.engine import Engine
from kvferry_server.core.states import TRANSITIONS, next_state
from kvferry_server.core.types import (
    EngineSettings,
    JobKind,
    JobSpec,
    Outcome,
    SessionSpec,
    TransferStatus,
)

SIZE = 32
SLOTS = 8
KEYS = [bytes([n]) * 8 + bytes(4) for n in range(4)]
SETTINGS = EngineSettings(
    max_active_chunks=3,
    max_attempts=3,
    transfer_seconds=6.0,
    backoff_base_seconds=0.5,
    breaker_failures=6,
    breaker_cooldown_seconds=1.0,
    present_seconds=1.0,
    absent_seconds=1.0,
    condemned_seconds=1.0,
)
MEANS = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
STORE_LIES = ["lose", "damage", "tear"]
LOAD_LIES = ["shorten", "damage", "outdate", "swap"]
numbers = st.integers(0, 2**16)
CANARIES = random.Random(0)


@pytest.fixture(autouse=True)
def repeatable_canaries(monkeypatch):
    """Hypothesis must see the same run twice."""
    monkeypatch.setattr(integrity.secrets, "randbelow", CANARIES.randrange)


class Running(NamedTuple):
    """A transfer whose step the store has not ended."""

    start: StartTransfer
    procedure: object
    step: Move
    expected: bytes | None
    """What a LOADED chunk must be; None if no checksum is known."""


class LyingStore:
    """Objects, their older versions, and the steps that move bytes."""

    exact_size = False

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.older: dict[str, list[bytes]] = {}

    def write(self, name, buffer):
        ok = yield Move(JobKind.STORE, buffer, name)
        return TransferStatus.OK if ok else TransferStatus.UNAVAILABLE

    def read(self, name, buffer):
        ok = yield Move(JobKind.LOAD, buffer, name)
        if ok:
            return TransferStatus.OK
        return TransferStatus.UNAVAILABLE if name in self.objects else TransferStatus.MISSING

    def facts(self, name):
        yield from ()
        return ObjectFacts(len(self.objects.get(name, b"")))

    def put(self, step: Move, lie: str, at: int) -> None:
        data = bytes(step.buffer)
        if lie == "damage":
            data = damaged(data, at)
        elif lie == "tear":
            data = data[: at % SIZE]
        if lie != "lose":
            self.older.setdefault(step.target, []).append(data)
            self.objects[step.target] = data

    def get(self, step: Move, lie: str, at: int) -> bytes:
        data = self.objects[step.target]
        if lie == "damage" and data:
            data = damaged(data, at)
        elif lie == "shorten":
            data = data[: at % SIZE]
        elif lie == "outdate":
            data = self.older[step.target][at % len(self.older[step.target])]
        elif lie == "swap":
            data = list(self.objects.values())[at % len(self.objects)]
        return data


def damaged(data: bytes, at: int) -> bytes:
    """One bit wrong."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class LyingMachine(RuleBasedStateMachine):
    """Engine, integrity and lying store, with the reference beside them."""

    seen: ClassVar[Counter[tuple[Outcome, bool]]] = Counter()
    """Chunks of all runs by outcome, and whether their checksum was known."""
    fenced = True
    """False: an attempt is reported while the store still writes, as NIXL's batches would."""

    def __init__(self) -> None:
        super().__init__()
        CANARIES.seed(0)
        self.store = LyingStore()
        self.contents = 0
        self.last: dict[str, bytes] = {}
        self.daemon()

    def daemon(self):
        """A daemon that knows nothing, or none of what it knew."""
        self.catalog = ChecksumCatalog()
        self.known: dict[str, bytes] = {}
        self.integrity = Integrity(self.catalog)
        self.engine = Engine(SETTINGS)
        self.now = 0.0
        self.job_id = 0
        self.acked = 0
        self.slots = [bytearray(SIZE) for _ in range(SLOTS)]
        self.busy: set[int] = set()
        self.reported: dict[int, bytes] = {}
        self.open: dict[int, JobSpec] = {}
        self.expected: dict[int, bytes | None] = {}
        self.running: dict[int, Running] = {}
        self.late: list[Move] = []
        self.send(events.StoreReadiness(ready=True))
        self.send(events.OpenSession(SessionSpec("s", "e", "ns", SLOTS, SIZE)))

    def send(self, event):
        """One step of the engine and what comes of it; then nothing reported has changed."""
        ended = []
        for effect in self.engine.step(event, self.now):
            if isinstance(effect, StartTransfer):
                ended += self.started(effect)
            elif isinstance(effect, JobFinished):
                self.finished(effect.result)
        for transfer_id, status in ended:
            self.send(events.TransferFinished(transfer_id, status))
        self.check_reported()

    def started(self, start):
        name = start.ref.key.hex()
        buffer = memoryview(self.slots[start.slot])
        if start.kind is JobKind.STORE:
            procedure = self.integrity.store(self.store, name, buffer)
            expected = bytes(buffer)
        else:
            procedure = self.integrity.load(self.store, name, buffer)
            expected = self.known.get(name)
            self.expected[start.slot] = expected
        return self.advance(Running(start, procedure, Move(start.kind, buffer, name), expected))

    def advance(self, running, answer=None):
        """Resume a procedure; what ended, if it did."""
        start, name = running.start, running.step.target
        try:
            step = running.procedure.send(answer)
        except StopIteration as stop:
            if start.kind is JobKind.STORE and stop.value is TransferStatus.OK:
                self.known[name] = running.expected
            missing = start.kind is JobKind.LOAD and stop.value is TransferStatus.MISSING
            if missing and self.known.get(name) == running.expected:
                self.known.pop(name, None)
            self.running.pop(start.transfer_id, None)
            return [(start.transfer_id, stop.value)]
        self.running[start.transfer_id] = running._replace(step=step)
        return []

    def finished(self, result):
        spec = self.open.pop(result.job_id)
        for slot, outcome in zip(spec.slots, result.outcomes, strict=True):
            content = bytes(self.slots[slot])
            expected = self.expected.pop(slot, None)
            self.seen[outcome, expected is not None] += 1
            if outcome is Outcome.LOADED and expected is not None:
                assert content == expected, "LOADED, and other bytes than were stored"
            self.busy.discard(slot)
            self.reported[slot] = content
        self.acked = result.seq

    def check_reported(self):
        for slot, content in self.reported.items():
            assert self.slots[slot] == content, "a slot changed after its job was reported"

    # -- rules

    @initialize()
    def some_objects_are_there(self):
        """So that loads have something to find from the start."""
        for at, each in enumerate(KEYS):
            self.submit(JobKind.STORE, [each], at)
            self.end(self.written(), ok=True)

    def written(self) -> Running:
        running = next(iter(self.running.values()))
        self.store.put(running.step, "", 0)
        return running

    @precondition(lambda self: self.known)
    @rule(number=numbers)
    def load_what_is_known(self, number):
        name = list(self.known)[number % len(self.known)]
        self.submit(JobKind.LOAD, [bytes.fromhex(name)], number)

    @rule(
        kind=st.sampled_from(JobKind),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True),
        at=numbers,
    )
    def submit(self, kind, keys, at):
        free = [slot for slot in range(SLOTS) if slot not in self.busy]
        if len(free) < len(keys):
            return
        slots = [free[(at + n) % len(free)] for n in range(len(keys))]
        for slot in slots:
            self.contents += 1
            self.reported.pop(slot, None)
            self.slots[slot][:] = self.contents.to_bytes(SIZE)
            self.busy.add(slot)
        self.job_id += 1
        self.open[self.job_id] = JobSpec(self.job_id, tuple(keys), tuple(slots))
        self.send(events.SubmitJobs("s", kind, (self.open[self.job_id],)))

    def picked(self, kind, number) -> Running | None:
        found = [each for each in self.running.values() if each.start.kind is kind]
        return found[number % len(found)] if found else None

    def end(self, running, *, ok):
        for transfer_id, status in self.advance(running, ok):
            self.send(events.TransferFinished(transfer_id, status))

    @precondition(lambda self: self.running)
    @rule(number=numbers, lie=st.sampled_from([*[""] * 4, *STORE_LIES]), at=numbers)
    def a_store_is_confirmed(self, number, lie, at):
        if running := self.picked(JobKind.STORE, number):
            self.store.put(running.step, lie, at)
            self.end(running, ok=True)

    @precondition(lambda self: self.running)
    @rule(number=numbers, lie=st.sampled_from(["", *STORE_LIES]), at=numbers)
    def a_store_fails_after_it_did_something(self, number, lie, at):
        if running := self.picked(JobKind.STORE, number):
            self.store.put(running.step, lie, at)
            self.end(running, ok=False)

    @precondition(lambda self: self.running)
    @rule(number=numbers, lie=st.sampled_from([*[""] * 4, *LOAD_LIES]), at=numbers)
    def a_load_is_confirmed(self, number, lie, at):
        if running := self.picked(JobKind.LOAD, number):
            found = running.step.target in self.store.objects
            if found:
                data = self.store.get(running.step, lie, at)
                running.step.buffer[: len(data)] = data
            self.end(running, ok=found)

    @precondition(lambda self: self.running)
    @rule(number=numbers, at=numbers)
    def a_load_writes_a_part_and_goes_on(self, number, at):
        if running := self.picked(JobKind.LOAD, number):
            running.step.buffer[at % SIZE] ^= 0xFF
            if not self.fenced:
                self.late.append(running.step)
                self.store.objects.pop(running.step.target, None)
                self.end(running, ok=False)

    @precondition(lambda self: self.late)
    @rule(at=numbers)
    def an_unfenced_write_arrives(self, at):
        self.late[at % len(self.late)].buffer[at % SIZE] ^= 0xFF
        self.check_reported()

    @precondition(lambda self: self.running)
    @rule(number=numbers)
    def a_load_fails_and_leaves_an_error_text(self, number):
        if running := self.picked(JobKind.LOAD, number):
            running.step.buffer[:8] = b"<Error/>"
            self.end(running, ok=False)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.send(events.Tick())

    @rule()
    def acknowledge(self):
        self.send(events.StartPoll(self.job_id, "s", self.acked, self.now))

    @precondition(lambda self: self.running)
    @rule(number=numbers, forgets=st.booleans())
    def the_daemon_dies(self, number, forgets):
        """Seldom. Its transfers die with it. The next one has its catalog, or has lost it."""
        if number % 8:
            return
        catalog, known = self.catalog, self.known
        self.daemon()
        if not forgets:
            self.catalog, self.known = catalog, known
            self.integrity = Integrity(catalog)

    def teardown(self):
        """Every job is reported, exactly once."""
        self.send(events.CloseSession("s"))
        while self.running:
            self.end(next(iter(self.running.values())), ok=False)
        assert not self.open


class UnfencedMachine(LyingMachine):
    """A driver that reports a failure while its transfer still writes."""

    fenced = False


def test_a_lying_store_never_gets_wrong_bytes_past_a_known_checksum(monkeypatch):
    taken = Counter()

    def counted(state, event, kind, outcome=None):
        after = next_state(state, event, kind, outcome)
        taken[state, event] += 1
        return after

    monkeypatch.setattr(tables, "next_state", counted)
    LyingMachine.seen.clear()
    run_state_machine_as_test(LyingMachine, settings=MEANS)
    assert set(taken) == set(TRANSITIONS)
    assert min(taken.values()) >= 100, taken
    for outcome in (Outcome.LOADED, Outcome.CORRUPT):
        assert LyingMachine.seen[outcome, True] >= 25, LyingMachine.seen


def test_the_model_notices_a_driver_without_a_fence():
    with pytest.raises(AssertionError, match="changed after its job was reported"):
        run_state_machine_as_test(UnfencedMachine, settings=MEANS)


def test_the_model_notices_a_missing_checksum(monkeypatch):
    monkeypatch.setattr("kvferry_server.adapters.integrity.crc32c", lambda _: 0)
    with pytest.raises(AssertionError, match="other bytes than were stored"):
        run_state_machine_as_test(LyingMachine, settings=MEANS)
