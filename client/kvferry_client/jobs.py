"""The jobs of one session, as a pure table: no I/O, no clock, no thread, no lock.

A job is cut into parts that fit the daemon's limits; each part is one job on the wire.

    QUEUED -> SENT -> DONE      released by a result from Poll or by the session's end
    QUEUED -> DONE              never sent: may fail at once

Once a part was handed out by `next_batch` it counts as possibly sent, and nothing but its
result or the end of the lease releases its slots. A batch whose fate is unknown is handed
out again, unchanged, until the daemon has answered. Wire numbers are dense from 1; those
of a batch that the daemon certainly refused are used again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from kvferry_client.limits import MESSAGE_OVERHEAD_BYTES, context_bytes, keys_bytes
from kvferry_client.types import JobKind, JobResult, Outcome, RequestContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvferry_client.limits import SessionLimits


class PartState(Enum):
    """Where a part is; see the module's docstring."""

    QUEUED = auto()
    SENT = auto()
    DONE = auto()


class Recorded(Enum):
    """What `record` made of a result."""

    TAKEN = auto()
    DUPLICATE = auto()
    UNKNOWN_JOB = auto()
    MALFORMED = auto()


@dataclass(slots=True)
class _Job:
    """A job as the caller knows it."""

    job_id: int
    kind: JobKind
    outcomes: list[Outcome]
    open_parts: int
    transferred_bytes: int = 0
    transfer_seconds: float = 0.0


@dataclass(slots=True)
class Part:
    """A piece of a job; one job on the wire."""

    job: _Job
    first: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]
    context: RequestContext
    wire_bytes: int
    wire_id: int = 0
    state: PartState = PartState.QUEUED

    @property
    def kind(self) -> JobKind:
        """Store or load."""
        return self.job.kind


@dataclass(slots=True)
class Batch:
    """Parts of one kind that travel in one request."""

    kind: JobKind
    parts: list[Part]
    doubtful: bool = False
    """True once an attempt to send it ended without the daemon's answer."""


@dataclass(frozen=True, slots=True)
class WireResult:
    """A job's result as Poll reports it."""

    seq: int
    wire_id: int
    kind: int
    outcomes: tuple[int, ...]
    transferred_bytes: int
    transfer_seconds: float


class JobTable:
    """All jobs of one session. The caller brings the lock."""

    def __init__(self, limits: SessionLimits, slot_bytes: int, max_queued_jobs: int) -> None:
        """Start empty; `max_queued_jobs` bounds the parts of each kind that wait to be sent."""
        self._limits = limits
        self._slot_bytes = slot_bytes
        self._max_queued = max_queued_jobs
        self._max_chunks = limits.max_chunks_per_job(slot_bytes)
        self._queues: dict[JobKind, deque[Part]] = {kind: deque() for kind in JobKind}
        self._alone: deque[Part] = deque()
        self._batch: Batch | None = None
        self._batch_out = False
        self._last_kind = JobKind.STORE
        self._next_wire_id = 1
        self._sent: dict[int, Part] = {}
        self._ack_seq = 0
        self._told_ack_seq = 0
        self._unacknowledged = 0
        self._open_jobs = 0
        self._ended = False
        self._finished: list[JobResult] = []

    @property
    def open_jobs(self) -> int:
        """Jobs that have no result yet."""
        return self._open_jobs

    @property
    def sent_parts(self) -> int:
        """Parts that the daemon may be working on."""
        return len(self._sent)

    @property
    def ack_seq(self) -> int:
        """Highest result number taken in."""
        return self._ack_seq

    @property
    def needs_poll(self) -> bool:
        """True if results may come, or the last ones are still to be acknowledged."""
        return bool(self._sent) or self._ack_seq > self._told_ack_seq

    @property
    def has_batch(self) -> bool:
        """True if `next_batch` would return one."""
        if self._batch_out:
            return False
        return self._batch is not None or self._next_kind() is not None

    def submit(
        self,
        job_id: int,
        kind: JobKind,
        keys: tuple[bytes, ...],
        slots: tuple[int, ...],
        context: RequestContext,
    ) -> bool:
        """Queue a job; False (and nothing changed) if the queue is full or a chunk is too big."""
        if self._max_chunks < 1 or self._ended:
            return False
        cuts = range(0, len(keys), self._max_chunks)
        if len(self._queues[kind]) + len(cuts) > self._max_queued:
            return False
        job = _Job(job_id, kind, [Outcome.NOT_SENT] * len(keys), open_parts=len(cuts))
        for first in cuts:
            part_keys = keys[first : first + self._max_chunks]
            part_slots = slots[first : first + self._max_chunks]
            size = keys_bytes(part_keys) + context_bytes(context)
            self._queues[kind].append(Part(job, first, part_keys, part_slots, context, size))
        self._open_jobs += 1
        return True

    def next_batch(self) -> Batch | None:
        """Hand out what to send next, its parts now possibly sent; None if there is nothing.

        A batch in doubt comes again before any other. The answer goes to one of
        `admitted`, `refused` and `unanswered`; until then there is no next batch.
        """
        if self._batch_out:
            return None
        if self._batch is not None:
            self._batch.parts = [p for p in self._batch.parts if p.state is PartState.SENT]
            if self._batch.parts:
                self._batch_out = True
                return self._batch
            self._batch = None
        kind = self._next_kind()
        if kind is None:
            return None
        parts = [self._alone.popleft()] if self._alone else self._fill(self._queues[kind])
        for part in parts:
            part.wire_id = self._next_wire_id
            part.state = PartState.SENT
            self._sent[part.wire_id] = part
            self._next_wire_id += 1
        self._last_kind = kind
        self._batch, self._batch_out = Batch(kind, parts), True
        return self._batch

    def admitted(self, batch: Batch) -> None:
        """Note that the daemon has all jobs of the batch; Poll will report them."""
        self._settle(batch)

    def unanswered(self, batch: Batch) -> None:
        """Note that the batch may or may not have arrived: it will be handed out again."""
        batch.doubtful = True
        self._batch_out = False

    def refused(self, batch: Batch, *, try_alone: bool) -> bool:
        """Fail a batch of which certainly nothing started; return False if that isn't certain.

        With `try_alone` the parts of a bigger batch are sent again one by one, so that a
        single bad job doesn't take the others with it.
        """
        if self._ended:
            return True
        if batch.doubtful or any(part.state is not PartState.SENT for part in batch.parts):
            self._batch_out = False
            return False
        self._settle(batch)
        self._next_wire_id = batch.parts[0].wire_id
        for part in batch.parts:
            del self._sent[part.wire_id]
            part.state = PartState.QUEUED
        if try_alone and len(batch.parts) > 1:
            self._alone.extend(batch.parts)
        else:
            self._finish_parts(batch.parts, Outcome.NOT_SENT)
        return True

    def is_open(self, part: Part) -> bool:
        """Tell whether a part that was sent has no result yet."""
        return not self._ended and part.state is PartState.SENT

    def record(self, result: WireResult) -> Recorded:
        """Take in a result from Poll; a repeated one changes nothing.

        A gap in the sequence or a job that was never sent means that a result is lost.
        """
        if result.seq <= self._ack_seq:
            return Recorded.DUPLICATE
        if result.seq != self._ack_seq + 1:
            return Recorded.MALFORMED
        self._ack_seq = result.seq
        self._unacknowledged += 1
        part = self._sent.get(result.wire_id)
        if part is None:
            was_sent = 0 < result.wire_id < self._next_wire_id
            return Recorded.UNKNOWN_JOB if was_sent else Recorded.MALFORMED
        if len(result.outcomes) != len(part.keys) or result.kind != part.kind:
            return Recorded.MALFORMED
        del self._sent[result.wire_id]
        job = part.job
        job.transferred_bytes += result.transferred_bytes
        job.transfer_seconds = max(job.transfer_seconds, result.transfer_seconds)
        self._finish_part(part, [_outcome(number) for number in result.outcomes])
        return Recorded.TAKEN

    def acknowledged(self, ack_seq: int) -> None:
        """Note that a Poll with this acknowledgement was answered."""
        self._told_ack_seq = max(self._told_ack_seq, ack_seq)
        if self._told_ack_seq == self._ack_seq:
            self._unacknowledged = 0

    def cancel_queued(self) -> None:
        """Fail every part that was never sent."""
        self._finish_parts([*self._alone], Outcome.NOT_SENT)
        self._alone.clear()
        for queue in self._queues.values():
            self._finish_parts([*queue], Outcome.NOT_SENT)
            queue.clear()

    def end(self) -> None:
        """Release everything: the lease has ended, nothing touches the region any more."""
        self.cancel_queued()
        sent, self._sent = self._sent, {}
        self._finish_parts(sent.values(), Outcome.LOST)
        self._batch, self._batch_out, self._ended = None, False, True

    def take_finished(self) -> list[JobResult]:
        """Return the results since the last call; each job's exactly once."""
        finished, self._finished = self._finished, []
        return finished

    def _next_kind(self) -> JobKind | None:
        """Loads first, but every other batch is the stores' while both wait."""
        if len(self._sent) + self._unacknowledged >= self._limits.max_open_jobs:
            return None
        if self._alone:
            return self._alone[0].kind
        waiting = [kind for kind in (JobKind.LOAD, JobKind.STORE) if self._queues[kind]]
        if len(waiting) > 1 and self._last_kind is JobKind.LOAD:
            return JobKind.STORE
        return waiting[0] if waiting else None

    def _fill(self, queue: deque[Part]) -> list[Part]:
        limits = self._limits
        room = limits.max_open_jobs - len(self._sent) - self._unacknowledged
        max_parts = min(limits.max_jobs_per_request, room)
        chunks, size = 0, MESSAGE_OVERHEAD_BYTES
        parts: list[Part] = []
        while queue and len(parts) < max_parts:
            chunks += len(queue[0].keys)
            size += queue[0].wire_bytes
            over = (
                chunks > limits.max_keys_per_request
                or chunks * self._slot_bytes > limits.max_bytes_per_request
                or size > limits.max_message_bytes
            )
            if over and parts:
                break
            parts.append(queue.popleft())
        return parts

    def _settle(self, batch: Batch) -> None:
        if self._batch is batch:
            self._batch, self._batch_out = None, False

    def _finish_parts(self, parts: Iterable[Part], outcome: Outcome) -> None:
        for part in parts:
            self._finish_part(part, [outcome] * len(part.keys))

    def _finish_part(self, part: Part, outcomes: Sequence[Outcome]) -> None:
        part.state = PartState.DONE
        job = part.job
        job.outcomes[part.first : part.first + len(part.keys)] = outcomes
        job.open_parts -= 1
        if job.open_parts:
            return
        self._open_jobs -= 1
        self._finished.append(
            JobResult(
                job.job_id,
                job.kind,
                tuple(job.outcomes),
                job.transferred_bytes,
                job.transfer_seconds,
            )
        )


def _outcome(number: int) -> Outcome:
    """Map a wire number; a newer daemon's unknown one is a fault, never a success."""
    if Outcome.STORED <= number <= Outcome.INTERNAL:
        return Outcome(number)
    return Outcome.INTERNAL
