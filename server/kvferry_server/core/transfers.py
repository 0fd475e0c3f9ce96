"""Admission, order, retries and outcomes of chunks.

Owns the queues, the active transfers, both breakers and the bounds. Knows nothing of
polls, results or lookups: the engine does.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable

from .admission import WITHHOLDING, AdmissionPolicy
from .breaker import Breaker
from .effects import Abort, Effect, StartTransfer
from .errors import IllegalTransition
from .load_pace import LoadPace
from .presence import PresenceTable
from .queues import PRUNE_SLACK, TransferQueue
from .states import ENDINGS, SUCCESS, ChunkEvent, ChunkState, next_state
from .store_window import StoreWindow
from .tables import Attempt, Chunk, Job, Session
from .types import (
    EngineSettings,
    JobKind,
    JobSpec,
    ObjectRef,
    Outcome,
    Presence,
    Refusal,
    TransferStatus,
)

_MAX_COUNTED_GAP_SECONDS = 1.0
"""A longer silence of the loop means that the process was paused."""
_CHUNKS = {
    (kind, outcome): f"chunks_{kind.name.lower()}_{outcome.name.lower()}"
    for kind in JobKind
    for outcome in Outcome
}
_BYTES = {kind: f"bytes_{kind.name.lower()}" for kind in JobKind}
_OUTAGES = frozenset({Refusal.NOT_READY, Refusal.BREAKER})


class Transfers:
    """The chunks of all sessions on their way.

    Args:
        emit: takes effects in order.
        job_finished: called once per job, when its last chunk became terminal.
    """

    def __init__(
        self,
        settings: EngineSettings,
        presence: PresenceTable,
        counters: Counter[str],
        emit: Callable[[Effect], None],
        job_finished: Callable[[Job, float], None],
    ) -> None:
        self._settings = settings
        self._presence = presence
        self._counters = counters
        self._emit = emit
        self._job_finished = job_finished
        self._random = random.Random(settings.random_seed)  # noqa: S311 -- jitter
        self._admission = AdmissionPolicy(settings)
        self._queue = TransferQueue()
        self._window = StoreWindow()
        self.load_pace = LoadPace(settings.min_load_bytes_per_second)
        self._by_deadline: deque[Job] = deque()
        self._active: dict[int, Attempt] = {}
        self._storing: set[ObjectRef] = set()
        self._last_transfer_id = 0
        self._job_order = 0
        self._unfinished_jobs = 0
        self._awake = 0.0
        self._last_step: float | None = None
        self.capacity = settings.max_active_chunks
        self.active = dict.fromkeys(JobKind, 0)
        self.queued = dict.fromkeys(JobKind, 0)
        self.queued_store_bytes = 0
        self.store_ready = False
        self.paused = dict.fromkeys(JobKind, False)
        self.breakers = {
            kind: Breaker(settings.breaker_failures, settings.breaker_cooldown_seconds)
            for kind in JobKind
        }

    def admit(self, session: Session, kind: JobKind, spec: JobSpec, now: float) -> Job:
        """Take in a checked job; chunks that need no transfer end at once."""
        self._job_order += 1
        job = Job(
            session=session,
            spec=spec,
            kind=kind,
            accepted_at=now,
            deadline=now + self._settings.transfer_seconds,
            order=self._job_order,
        )
        session.jobs[spec.job_id] = job
        session.seen.add(spec.job_id)
        job.chunks = [
            Chunk(job, ObjectRef(session.spec.space, key), slot)
            for key, slot in zip(spec.keys, spec.slots, strict=True)
        ]
        session.open_chunks += len(job.chunks)
        job.counts[ChunkState.QUEUED] = len(job.chunks)
        self.queued[kind] += len(job.chunks)
        self._by_deadline.append(job)
        self._unfinished_jobs += 1
        for chunk in job.chunks:
            session.hold_slot(chunk)
            if kind is JobKind.STORE:
                self._enqueue_store(chunk, now)
            else:
                self._queue.kinds[kind].push(chunk)
        return job

    def pump(self, now: float) -> None:
        """Start what may start, end what is refused by now, and forget what is done with."""
        self._drop_refused(now)
        while len(self._active) < self.capacity:
            most_stores = self._window.limit(self.capacity, now)
            chunk = self._queue.pop(self.active[JobKind.STORE], most_stores)
            if chunk is None:
                break
            if now >= chunk.job.deadline:
                self._drop(chunk, Outcome.EXPIRED, now)
            elif self._start(chunk, now):
                self._drop_refused(now)  # only the trial may run now
        self._prune()

    def finished(self, transfer_id: int, status: TransferStatus, now: float) -> ObjectRef | None:
        """Take in the end of an attempt.

        Returns:
            The object, if the attempt showed whether it exists.

        Raises:
            IllegalTransition: no such transfer is running, or it can't end so; nothing changes.
        """
        attempt = self._active.get(transfer_id)
        if attempt is None:
            raise IllegalTransition(f"end of transfer {transfer_id}, which is not running")
        kind = attempt.chunk.job.kind
        outcome = SUCCESS[kind] if status is TransferStatus.OK else ENDINGS[status]
        next_state(attempt.chunk.state, ChunkEvent.FINISH, kind, outcome)
        del self._active[transfer_id]
        chunk = attempt.chunk
        self.active[kind] -= 1
        chunk.job.session.active_chunks -= 1
        self._note_health(kind, status, now, trial=attempt.trial)
        known = self._note_presence(chunk, status, now)
        if kind is JobKind.LOAD:
            self._note_load(attempt, status, now)
        if not self._may_retry(chunk, status, now):
            self._end(chunk, ChunkEvent.FINISH, outcome, now)
        return chunk.ref if known else None

    def _note_load(self, attempt: Attempt, status: TransferStatus, now: float) -> None:
        size = attempt.chunk.job.session.spec.slot_bytes
        loaded = status is TransferStatus.OK
        self.load_pace.ended(size if loaded else 0, now)
        if loaded:
            stores = (attempt.stores, self.active[JobKind.STORE])
            self._window.load_ended(size, now - attempt.began, stores, now)
        else:
            self._window.load_failed(now)

    def cancel(self, session: Session, now: float) -> None:
        """End every queued chunk of a session; running attempts are not retried."""
        unfinished = [job for job in session.jobs.values() if not job.finished]
        for job in unfinished:
            job.retries_allowed = False
        self.drop_queued((c for job in unfinished for c in job.chunks), Outcome.CANCELLED, now)

    def forget(self, session: Session) -> None:
        """Drop what the queues hold of a session that has ended."""
        for queue in self._queue.kinds.values():
            queue.forget(session)

    def set_ready(self, *, ready: bool) -> None:
        """The store passed or failed its preflight; passing closes both breakers."""
        self.store_ready = ready
        if ready:
            for breaker in self.breakers.values():
                breaker.success()

    def drop_queued(self, chunks: Iterable[Chunk], outcome: Outcome, now: float) -> None:
        """End those of the chunks that are queued."""
        for chunk in list(chunks):
            if chunk.state is ChunkState.QUEUED:
                self._drop(chunk, outcome, now)

    def tick(self, now: float) -> None:
        """Let time pass: due retries, expired jobs, the hard deadline."""
        for queue in self._queue.kinds.values():
            queue.wake(now)
        while self._by_deadline:
            job = self._by_deadline[0]
            if not job.finished:
                if now < job.deadline:
                    break
                self.drop_queued(job.chunks, Outcome.EXPIRED, now)
            self._by_deadline.popleft()
        self._check_hard_deadline()

    def note_step(self, now: float) -> None:
        """Count the time in which the loop was seen alive."""
        if self._last_step is not None:
            self._awake += min(now - self._last_step, _MAX_COUNTED_GAP_SECONDS)
        self._last_step = now

    def next_wakeup(self, now: float) -> float | None:
        """When `tick` is due next."""
        times = [
            at for queue in self._queue.kinds.values() if (at := queue.next_wakeup()) is not None
        ]
        if self._by_deadline:
            times.append(max(self._by_deadline[0].deadline, now))
        if self._active:
            times.append(now + _MAX_COUNTED_GAP_SECONDS / 2)
        return min(times, default=None)

    @property
    def offer_entries(self) -> int:
        """Keys whose offers are counted."""
        return len(self._admission)

    @property
    def awake_seconds(self) -> float:
        """Time in which the loop was seen alive; a pause of the process does not count."""
        return self._awake

    def oldest_active_seconds(self) -> float:
        """Ticked age of the oldest running transfer, 0 if none runs."""
        first = next(iter(self._active.values()), None)
        return 0.0 if first is None else self._awake - first.awake_at

    def _enqueue_store(self, chunk: Chunk, now: float) -> None:
        size = chunk.job.session.spec.slot_bytes
        if self._presence.get(chunk.ref, now) is Presence.PRESENT:
            self._drop(chunk, Outcome.SKIPPED_PRESENT, now, held=False)
        elif chunk.ref in self._storing:
            self._drop(chunk, Outcome.SKIPPED_IN_FLIGHT, now, held=False)
        elif (refusal := self._store_refusal(chunk.ref, size, now)) is not None:
            self._refuse(chunk, refusal, now, held=False)
        else:
            self._storing.add(chunk.ref)
            self.queued_store_bytes += size
            self._queue.kinds[JobKind.STORE].push(chunk)

    def _refusal(self, kind: JobKind, now: float) -> Refusal | None:
        """Why no chunk of this kind can start now; None if it can."""
        if self.paused[kind]:
            return Refusal.PAUSED
        if not self.store_ready:
            return Refusal.NOT_READY
        return None if self.breakers[kind].allows(now) else Refusal.BREAKER

    def _store_refusal(self, ref: ObjectRef, size: int, now: float) -> Refusal | None:
        """Why this store can't even be queued; None if it can."""
        refusal = self._refusal(JobKind.STORE, now)
        if refusal is None and self.queued_store_bytes + size > (
            self._settings.max_queued_store_bytes
        ):
            refusal = Refusal.QUEUE_FULL
        return refusal or self._admission.offer(ref, size, now)

    def _drop_refused(self, now: float) -> None:
        """End what waits although its kind is paused, not ready or behind an open breaker."""
        for kind, queue in self._queue.kinds.items():
            if self.queued[kind] and (refusal := self._refusal(kind, now)) is not None:
                for chunk in list(queue.waiting()):
                    self._refuse(chunk, refusal, now)

    def _prune(self) -> None:
        """Keep what is held in proportion to what is unfinished."""
        for kind, queue in self._queue.kinds.items():
            queue.prune(self.queued[kind])
        if len(self._by_deadline) > 2 * self._unfinished_jobs + PRUNE_SLACK:
            self._by_deadline = deque(job for job in self._by_deadline if not job.finished)

    def _start(self, chunk: Chunk, now: float) -> bool:
        """Start an attempt; whether it is a breaker's trial."""
        job, kind = chunk.job, chunk.job.kind
        chunk.apply(ChunkEvent.START)
        chunk.attempts += 1
        self._last_transfer_id += 1
        trial = self.breakers[kind].begin(now)
        stores = self.active[JobKind.STORE]
        self._active[self._last_transfer_id] = Attempt(chunk, now, self._awake, stores, trial=trial)
        self.queued[kind] -= 1
        self.active[kind] += 1
        job.session.active_chunks += 1
        if kind is JobKind.STORE:
            self.queued_store_bytes -= job.session.spec.slot_bytes
        else:
            self._window.load_began(now)
            self.load_pace.began(now)
        if job.first_start is None:
            job.first_start = now
        self._emit(
            StartTransfer(
                transfer_id=self._last_transfer_id,
                session_id=job.session.spec.session_id,
                kind=kind,
                slot=chunk.slot,
                ref=chunk.ref,
                attempt=chunk.attempts,
                accepted_at=job.accepted_at,
            )
        )
        return trial

    def _may_retry(self, chunk: Chunk, status: TransferStatus, now: float) -> bool:
        job, kind = chunk.job, chunk.job.kind
        if status is not TransferStatus.UNAVAILABLE or not job.retries_allowed:
            return False
        if chunk.attempts >= self._settings.max_attempts:
            return False
        not_before = now + self._random.uniform(0, self._backoff_limit(chunk.attempts))
        if not_before >= job.deadline or self._refusal(kind, now) is not None:
            return False
        chunk.apply(ChunkEvent.RETRY)
        self.queued[kind] += 1
        if kind is JobKind.STORE:
            self.queued_store_bytes += job.session.spec.slot_bytes
            self._admission.spend(job.session.spec.slot_bytes)
        self._queue.kinds[kind].push_later(chunk, not_before)
        self._counters[f"retries_{kind.name.lower()}"] += 1
        return True

    def _backoff_limit(self, attempts: int) -> float:
        settings = self._settings
        grown: float = settings.backoff_base_seconds * 2 ** (attempts - 1)
        return min(settings.backoff_cap_seconds, grown)

    def _note_health(
        self, kind: JobKind, status: TransferStatus, now: float, *, trial: bool
    ) -> None:
        breaker = self.breakers[kind]
        if status is TransferStatus.UNAVAILABLE or (status is TransferStatus.INTERNAL and trial):
            breaker.failure(now, trial=trial)
        elif status is not TransferStatus.INTERNAL:
            breaker.success()

    def _note_presence(self, chunk: Chunk, status: TransferStatus, now: float) -> bool:
        """Learn whether the object exists; False if the attempt does not tell."""
        if status is TransferStatus.OK and chunk.job.kind is JobKind.STORE:
            self._presence.stored(chunk.ref, now)
            self._admission.stored(chunk.ref)
        elif status is TransferStatus.MISSING:
            self._presence.missing(chunk.ref, now)
        elif status in {TransferStatus.CORRUPT, TransferStatus.WRONG_SIZE}:
            self._presence.condemn(chunk.ref, now)
        else:
            return False
        return True

    def _refuse(self, chunk: Chunk, refusal: Refusal, now: float, *, held: bool = True) -> None:
        """End a queued chunk for a reason that is counted; `held` as for `_drop`."""
        kind = chunk.job.kind
        self._counters[f"refused_{kind.name.lower()}_{refusal}"] += 1
        chunk.job.withheld += refusal in WITHHOLDING
        unavailable = kind is JobKind.LOAD and refusal in _OUTAGES
        outcome = Outcome.UNAVAILABLE if unavailable else Outcome.SHED
        self._drop(chunk, outcome, now, held=held)

    def _drop(self, chunk: Chunk, outcome: Outcome, now: float, *, held: bool = True) -> None:
        """End a queued chunk; `held` unless it never got into the store queue."""
        kind = chunk.job.kind
        self.queued[kind] -= 1
        if kind is JobKind.STORE and held:
            self.queued_store_bytes -= chunk.job.session.spec.slot_bytes
        self._end(chunk, ChunkEvent.DROP, outcome, now, held=held)

    def _end(
        self, chunk: Chunk, event: ChunkEvent, outcome: Outcome, now: float, *, held: bool = True
    ) -> None:
        job = chunk.job
        chunk.apply(event, outcome)
        job.session.free_slot(chunk)
        if job.kind is JobKind.STORE and held:
            self._storing.discard(chunk.ref)
        self._counters[_CHUNKS[job.kind, outcome]] += 1
        if outcome is SUCCESS[job.kind]:
            self._counters[_BYTES[job.kind]] += job.session.spec.slot_bytes
        if job.finished:
            self._unfinished_jobs -= 1
            self._job_finished(job, now)

    def _check_hard_deadline(self) -> None:
        age = self.oldest_active_seconds()
        if age >= self._settings.hard_deadline_seconds:
            oldest = next(iter(self._active.values()))
            self._emit(
                Abort(
                    f"a {oldest.chunk.job.kind.name.lower()} of slot {oldest.chunk.slot} has"
                    f" been running for {age:.0f} s, longer than hard_deadline_seconds"
                )
            )
