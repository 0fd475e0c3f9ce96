"""The send thread: Store, Load and Lookup requests. It never waits for an answer.

Calls are futures; their callbacks run on gRPC's thread and only touch the shared state.
One Store or Load is in flight at a time, so that job numbers arrive in order; lookups
overtake them. A batch whose call fails is sent again, unchanged, until the daemon answers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from kvferry.v1 import offload_pb2
from kvferry_client import codec
from kvferry_client.session import FAILURE_LINE, SESSION_GONE_CODES, code_of, describe
from kvferry_client.shared import logger
from kvferry_client.types import JobKind

if TYPE_CHECKING:
    from kvferry_client.jobs import Batch
    from kvferry_client.lookups import LookupSlice
    from kvferry_client.session import Session
    from kvferry_client.shared import Shared

SEND_TIMEOUT_SECONDS: Final = 5.0
LOOKUP_GRACE_SECONDS: Final = 0.25
"""How much longer than the caller a lookup call waits, so that late answers are counted."""
FIRST_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 1.0
REFUSALS: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED})


@dataclass(slots=True)
class _Work:
    """What the thread does in one round."""

    session: Session | None = None
    lookups: list[list[LookupSlice]] | None = None
    batch: Batch | None = None
    notice: str = ""


class Sender:
    """Body of the send thread."""

    def __init__(self, shared: Shared) -> None:
        """Keep the shared state; touches nothing yet."""
        self._shared = shared
        self._retry_at = 0.0
        self._retry = FIRST_RETRY_SECONDS

    def run(self) -> None:
        """Send what is queued until the client is closed and its session has ended."""
        while (work := self._next_work()) is not None:
            if work.notice:
                logger.warning("%s", work.notice)
            if work.session is None:
                continue
            for slices in work.lookups or ():
                self._send_lookup(work.session, slices)
            if work.batch is not None:
                self._send_batch(work.session, work.batch)

    def _next_work(self) -> _Work | None:
        shared = self._shared
        while True:
            with shared.lock:
                shared.take_in()
                now = time.monotonic()
                notice = shared.due_notice(now)
                session = shared.usable_session
                if session is not None:
                    work = _Work(session, self._take_lookups(session, now), None, notice)
                    if now >= self._retry_at:
                        work.batch = session.jobs.next_batch()
                    if work.lookups or work.batch or notice:
                        return work
                elif shared.closing and shared.session is None:
                    return None
                elif notice:
                    return _Work(notice=notice)
                wait = self._wait_seconds(session, now)
            shared.sender_wakeup.wait(wait)

    def _wait_seconds(self, session: Session | None, now: float) -> float | None:
        waits = [self._shared.notice_wait(now)]
        if session is not None and session.jobs.has_batch:
            waits.append(max(self._retry_at - now, 0.0))
        return min((wait for wait in waits if wait is not None), default=None)

    def _take_lookups(self, session: Session, now: float) -> list[list[LookupSlice]]:
        requests = []
        while slices := self._shared.lookups.next_request(session.limits, now):
            requests.append(slices)
        return requests

    def _send_lookup(self, session: Session, slices: list[LookupSlice]) -> None:
        left = max(piece.deadline for piece in slices) - time.monotonic()
        request = codec.lookup_request(session.ref, slices, left)
        try:
            future = session.stub().Lookup.future(
                request, timeout=max(left, 0.0) + LOOKUP_GRACE_SECONDS
            )
        except (ValueError, RuntimeError) as error:
            self._lookup_failed(session, slices, error)
            self._not_called(session, error)
            return
        future.add_done_callback(lambda done: self._on_lookup(session, slices, done))

    def _on_lookup(self, session: Session, slices: list[LookupSlice], call: Any) -> None:  # noqa: ANN401 - gRPC's future has no type
        error = call.exception() if not call.cancelled() else grpc.FutureCancelledError()
        if error is not None:
            self._lookup_failed(session, slices, error)
            return
        reply: offload_pb2.LookupResponse = call.result()
        if not self._is_ours(session, reply.boot_id) or len(reply.groups) != len(slices):
            self._lookup_failed(session, slices, ValueError("the answer isn't for this session"))
            return
        with self._shared.lock:
            self._shared.call_answered()
            for piece, group in zip(slices, reply.groups, strict=True):
                self._shared.lookups.answer(piece, group.verdicts)
            self._shared.changed.notify_all()

    def _lookup_failed(
        self, session: Session, slices: list[LookupSlice], error: BaseException
    ) -> None:
        with self._shared.lock:
            for piece in slices:
                self._shared.lookups.answer(piece, ())
            self._shared.changed.notify_all()
        self._note_failure(session, error)

    def _send_batch(self, session: Session, batch: Batch) -> None:
        jobs = codec.job_messages(batch.parts)
        try:
            future: Any
            if batch.kind is JobKind.STORE:
                store = offload_pb2.StoreRequest(session=session.ref, jobs=jobs)
                future = session.stub().Store.future(store, timeout=SEND_TIMEOUT_SECONDS)
            else:
                load = offload_pb2.LoadRequest(session=session.ref, jobs=jobs)
                future = session.stub().Load.future(load, timeout=SEND_TIMEOUT_SECONDS)
        except (ValueError, RuntimeError) as error:
            self._batch_unanswered(session, batch, error)
            self._not_called(session, error)
            return
        with self._shared.lock:
            self._shared.poller_wakeup.notify_all()
        future.add_done_callback(lambda done: self._on_batch(session, batch, done))

    def _on_batch(self, session: Session, batch: Batch, call: Any) -> None:  # noqa: ANN401 - gRPC's future has no type
        error = call.exception() if not call.cancelled() else grpc.FutureCancelledError()
        if error is not None:
            if code_of(error) in REFUSALS:
                self._batch_refused(session, batch, error)
            else:
                self._batch_unanswered(session, batch, error)
            return
        reply: offload_pb2.StoreResponse | offload_pb2.LoadResponse = call.result()
        if not self._is_ours(session, reply.boot_id):
            self._batch_unanswered(session, batch, ValueError("answered by another daemon"))
            return
        with self._shared.lock:
            contradiction = len(reply.admissions) != len(batch.parts) or any(
                admission == offload_pb2.JOB_ADMISSION_ALREADY_REPORTED
                and session.jobs.is_open(part)
                for part, admission in zip(batch.parts, reply.admissions, strict=False)
            )
            self._shared.call_answered()
            session.send_stall.answered()
            session.jobs.admitted(batch)
            self._retry, self._retry_at = FIRST_RETRY_SECONDS, 0.0
            self._shared.sender_wakeup.set()
        if contradiction:
            self._shared.give_up(session, "the daemon's admissions don't match what was sent")

    def _batch_refused(self, session: Session, batch: Batch, error: BaseException) -> None:
        alone = code_of(error) is grpc.StatusCode.INVALID_ARGUMENT
        with self._shared.lock:
            session.send_stall.answered()
            before = session.jobs.open_jobs
            certain = session.jobs.refused(batch, try_alone=alone)
            self._shared.counters["jobs_not_sent_refused"] += before - session.jobs.open_jobs
            if session is self._shared.session:
                self._shared.collect()
            self._shared.sender_wakeup.set()
        logger.warning("the kvferry daemon refused %d jobs: %s", len(batch.parts), describe(error))
        if not certain:
            self._shared.give_up(session, "refused after an attempt whose fate is unknown")

    def _batch_unanswered(self, session: Session, batch: Batch, error: BaseException) -> None:
        with self._shared.lock:
            now = time.monotonic()
            session.jobs.unanswered(batch)
            stalled = session.send_stall.failed(now)
            self._retry_at = now + self._retry
            self._retry = min(2 * self._retry, MAX_RETRY_SECONDS)
            self._shared.sender_wakeup.set()
        self._note_failure(session, error)
        if stalled:
            self._shared.give_up(session, f"a request stays unanswered: {describe(error)}")

    def _not_called(self, session: Session, error: Exception) -> None:
        """End a session whose channel can't be used any more: gRPC got no thread for its calls."""
        if isinstance(error, RuntimeError):
            session.channel.abandon()
            self._shared.lacks_threads = True
            self._shared.give_up(session, f"gRPC got no thread: {error}")

    def _is_ours(self, session: Session, boot_id: str) -> bool:
        if boot_id == session.boot_id:
            return True
        self._shared.give_up(session, "another daemon answers (new boot id)")
        return False

    def _note_failure(self, session: Session, error: BaseException) -> None:
        with self._shared.lock:
            is_news = self._shared.call_failed(session, time.monotonic())
        if is_news:
            logger.warning(FAILURE_LINE, describe(error))
        if code_of(error) in SESSION_GONE_CODES:
            self._shared.give_up(session, f"the daemon doesn't know the session: {describe(error)}")
