"""Chunks, jobs and sessions: the engine's records. No policy here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .intervals import IdIntervals
from .states import ChunkEvent, ChunkState, next_state
from .types import JobKind, JobResult, JobSpec, ObjectRef, Outcome, SessionSpec


@dataclass(slots=True, eq=False)
class Chunk:
    """One key of a job and the slot that belongs to it."""

    job: Job
    ref: ObjectRef
    slot: int
    state: ChunkState = ChunkState.QUEUED
    outcome: Outcome | None = None
    attempts: int = 0

    def apply(self, event: ChunkEvent, outcome: Outcome | None = None) -> None:
        """Change the state as the tables say.

        Raises:
            IllegalTransition: and changes nothing.
        """
        before = self.state
        self.state = next_state(before, event, self.job.kind, outcome)
        self.outcome = outcome
        counts = self.job.counts
        counts[before] -= 1
        counts[self.state] += 1


@dataclass(slots=True, eq=False)
class Job:
    """A store or load of several chunks."""

    session: Session
    spec: JobSpec
    kind: JobKind
    accepted_at: float
    deadline: float
    order: int
    """Position in the order of acceptance over all sessions."""
    chunks: list[Chunk] = field(default_factory=list)
    counts: dict[ChunkState, int] = field(default_factory=lambda: dict.fromkeys(ChunkState, 0))
    first_start: float | None = None
    retries_allowed: bool = True
    withheld: int = 0
    """Chunks that the admission settings held back."""

    @property
    def finished(self) -> bool:
        """Whether every chunk is terminal."""
        return self.counts[ChunkState.DONE] == len(self.chunks)


@dataclass(slots=True, eq=False)
class Session:
    """An attached region with its jobs and results."""

    spec: SessionSpec
    opened_at: float
    jobs: dict[int, Job] = field(default_factory=dict)
    """Running or not yet acknowledged, by id."""
    open_chunks: int = 0
    """Chunks of these jobs."""
    seen: IdIntervals = field(default_factory=IdIntervals)
    results: deque[JobResult] = field(default_factory=deque)
    """Not yet acknowledged, by ascending `seq`."""
    last_seq: int = 0
    active_chunks: int = 0
    loading_slots: set[int] = field(default_factory=set)
    storing_slots: dict[int, int] = field(default_factory=dict)
    """Slots of unfinished store chunks, with their number."""
    closing: bool = False

    def acknowledge(self, seq: int) -> None:
        """Forget results up to `seq`, and their jobs."""
        while self.results and self.results[0].seq <= seq:
            job = self.jobs.pop(self.results.popleft().job_id)
            self.open_chunks -= len(job.chunks)

    def hold_slot(self, chunk: Chunk) -> None:
        """Note that an unfinished chunk uses its slot."""
        if chunk.job.kind is JobKind.LOAD:
            self.loading_slots.add(chunk.slot)
        else:
            self.storing_slots[chunk.slot] = self.storing_slots.get(chunk.slot, 0) + 1

    def free_slot(self, chunk: Chunk) -> None:
        """Note that a chunk is terminal."""
        if chunk.job.kind is JobKind.LOAD:
            self.loading_slots.discard(chunk.slot)
        elif self.storing_slots[chunk.slot] == 1:
            del self.storing_slots[chunk.slot]
        else:
            self.storing_slots[chunk.slot] -= 1


class Attempt:
    """A running transfer."""

    __slots__ = ("awake_at", "began", "chunk", "stores", "trial")

    def __init__(
        self, chunk: Chunk, began: float, awake_at: float, stores: int, *, trial: bool
    ) -> None:
        self.chunk = chunk
        self.began = began
        self.awake_at = awake_at
        """In ticked seconds, in which a pause of the process does not count."""
        self.stores = stores
        """How many were running when it began."""
        self.trial = trial
