"""A driver around the real `Engine`: a clock that tests move, and what the world still owes it.

`World` sends events, keeps the effects, and knows which transfers and probes run.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from kvferry_server.core.effects import (
    Effect,
    JobFinished,
    LookupReply,
    PollReply,
    StartProbe,
    StartTransfer,
    SubmitReply,
)
from kvferry_server.core.engine import Engine
from kvferry_server.core.events import (
    CloseSession,
    Event,
    OpenSession,
    ProbeFinished,
    StartDrain,
    StartLookup,
    StartPoll,
    StoreReadiness,
    SubmitJobs,
    Tick,
    TransferFinished,
)
from kvferry_server.core.types import (
    Admission,
    EngineSettings,
    JobKind,
    JobSpec,
    LookupGroup,
    ObjectRef,
    Outcome,
    Presence,
    RequestContext,
    SessionSpec,
    TransferStatus,
)

STORE, LOAD = JobKind.STORE, JobKind.LOAD
PRESENT, ABSENT, UNKNOWN = Presence.PRESENT, Presence.ABSENT, Presence.UNKNOWN
OK, UNAVAILABLE = TransferStatus.OK, TransferStatus.UNAVAILABLE

T = TypeVar("T", bound=Effect)


def key(name: str, group: int = 0) -> bytes:
    """A key from a short name."""
    return b"k" + name.encode() + group.to_bytes(4, "big")


def keys(names: str) -> tuple[bytes, ...]:
    """One key per letter, or per word if there is a blank (also at the end)."""
    return tuple(map(key, names.split() if " " in names else names))


def ref(name: str, space: str = "ns") -> ObjectRef:
    """The object of `key(name)`."""
    return ObjectRef(space, key(name))


def job(job_id: int, names: str, first_slot: int = 0, *, priority: int = 0) -> JobSpec:
    """A job with one chunk per letter or word, in consecutive slots."""
    chunk_keys = keys(names)
    slots = tuple(range(first_slot, first_slot + len(chunk_keys)))
    return JobSpec(job_id, chunk_keys, slots, RequestContext(f"r{job_id}", priority))


def snapshot(engine: Engine) -> bytes:
    """All state of an engine; equal bytes mean that nothing changed."""
    return pickle.dumps(engine)


class Effects(list[Effect]):
    """Effects of one step, by type."""

    def of(self, kind: type[T]) -> list[T]:
        """Those of a type, in order."""
        return [each for each in self if isinstance(each, kind)]

    def one(self, kind: type[T]) -> T:
        """The only one of a type."""
        (only,) = self.of(kind)
        return only


class World:
    """An engine with its surroundings."""

    def __init__(self, *, ready: bool = True, **settings: float) -> None:
        self.settings = EngineSettings(**settings)  # type: ignore[arg-type]
        self.engine = Engine(self.settings)
        self.now = 1000.0
        self.log = Effects()
        self.running: dict[int, StartTransfer] = {}
        self.probing: dict[int, StartProbe] = {}
        self._ids = 0
        if ready:
            self.do(StoreReadiness(ready=True))

    def do(self, event: Event) -> Effects:
        """Send an event."""
        done = Effects(self.engine.step(event, self.now))
        self.log += done
        self.running |= {e.transfer_id: e for e in done.of(StartTransfer)}
        self.probing |= {e.probe_id: e for e in done.of(StartProbe)}
        return done

    def tick(self, seconds: float = 0.0) -> Effects:
        """Let time pass in one jump."""
        self.now += seconds
        return self.do(Tick())

    def live(self, seconds: float, pace: float = 0.5) -> Effects:
        """Let time pass as a loop that is awake sees it."""
        done = Effects()
        for _ in range(round(seconds / pace)):
            done += self.tick(pace)
        return done

    def open(
        self, session_id: str = "s", space: str = "ns", slots: int = 64, slot_bytes: int = 100
    ) -> Effects:
        """Attach a region."""
        return self.do(OpenSession(SessionSpec(session_id, "engine", space, slots, slot_bytes)))

    def close(self, session_id: str = "s") -> Effects:
        """Begin to end a session."""
        return self.do(CloseSession(session_id))

    def submit(self, kind: JobKind, *jobs: JobSpec, session: str = "s") -> Effects:
        """Submit jobs in one request."""
        return self.do(SubmitJobs(session, kind, jobs))

    def store(self, job_id: int, names: str, first_slot: int = 0, *, session: str = "s") -> Effects:
        """Submit one store."""
        return self.submit(STORE, job(job_id, names, first_slot), session=session)

    def load(self, job_id: int, names: str, first_slot: int = 0, *, session: str = "s") -> Effects:
        """Submit one load."""
        return self.submit(LOAD, job(job_id, names, first_slot), session=session)

    def transfer_of(self, name: str, space: str = "ns") -> int:
        """The running transfer of an object."""
        (found,) = [n for n, t in self.running.items() if t.ref == ref(name, space)]
        return found

    def finish(
        self, which: str | int, status: TransferStatus = OK, *, space: str = "ns"
    ) -> Effects:
        """End a running transfer, named by its object or its number."""
        number = which if isinstance(which, int) else self.transfer_of(which, space)
        done = self.do(TransferFinished(number, status))
        del self.running[number]
        return done

    def finish_all(self, status: TransferStatus = OK) -> Effects:
        """End all running transfers and those that start meanwhile."""
        done = Effects()
        while self.running:
            done += self.finish(next(iter(self.running)), status)
        return done

    def start_lookup(
        self,
        *groups: str | tuple[bytes, ...],
        prefix: bool = True,
        seconds: float = 2.0,
        session: str = "s",
    ) -> tuple[int, Effects]:
        """Begin a lookup; its number and the first effects."""
        self._ids += 1
        specs = tuple(
            LookupGroup(keys(group) if isinstance(group, str) else group, prefix)
            for group in groups
        )
        return self._ids, self.do(StartLookup(self._ids, session, specs, self.now + seconds))

    def probed(
        self, verdicts: Sequence[Presence] | Presence, probe: int | None = None, *, failed=False
    ) -> Effects:
        """End a probe (the oldest): one verdict for all its keys, or one each."""
        number = next(iter(self.probing)) if probe is None else probe
        count = len(self.probing[number].refs)
        each = (verdicts,) * count if isinstance(verdicts, Presence) else tuple(verdicts)
        done = self.do(ProbeFinished(number, each, failed))
        del self.probing[number]
        return done

    def ask(self, *groups: str, prefix: bool = False, session: str = "s") -> list[Presence]:
        """Verdicts of a lookup that is answered without a probe."""
        number, done = self.start_lookup(*groups, prefix=prefix, session=session)
        reply = done.one(LookupReply)
        assert reply.lookup_id == number
        return [verdict for group in reply.verdicts for verdict in group]

    def learn(self, name: str, verdict: Presence, session: str = "s") -> None:
        """Put a verdict into the presence table by way of a probe."""
        self.start_lookup(name, session=session)
        self.probed(verdict, max(self.probing))

    def poll(self, ack: int = 0, seconds: float = 0.0, session: str = "s") -> Effects:
        """Poll; answered at once unless `seconds` are given."""
        self._ids += 1
        return self.do(StartPoll(self._ids, session, ack, self.now + seconds))

    def drain(self, seconds: float = 10.0, session: str = "s") -> Effects:
        """Drain."""
        self._ids += 1
        return self.do(StartDrain(self._ids, session, self.now + seconds))

    @property
    def last_id(self) -> int:
        """Number of the latest lookup, poll or drain."""
        return self._ids

    def outcomes(self, job_id: int, session: str = "s") -> tuple[Outcome, ...]:
        """How a job ended; it has to have ended exactly once."""
        (found,) = [
            each.result.outcomes
            for each in self.log.of(JobFinished)
            if each.session_id == session and each.result.job_id == job_id
        ]
        return found

    def reported(self, session: str = "s") -> list[int]:
        """Job ids in the order in which they ended."""
        return [e.result.job_id for e in self.log.of(JobFinished) if e.session_id == session]

    @property
    def counters(self) -> Counter[str]:
        """The engine's counters."""
        return self.engine.counters


def admissions(done: Effects) -> tuple[Admission, ...]:
    """Of a submit's effects."""
    return done.one(SubmitReply).admissions


def polled(done: Effects) -> list[int]:
    """Job ids that the only poll reply among the effects brings."""
    return [result.job_id for result in done.one(PollReply).results]


def started(done: Effects) -> list[str]:
    """Names of the objects whose transfer starts, in order."""
    return [e.ref.key[1:-4].decode() for e in done.of(StartTransfer)]
