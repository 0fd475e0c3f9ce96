"""The poll thread: takes results in and acknowledges them, at least once on the wire.

Together with the session's job table this gives each job exactly one result. The thread
sleeps while nothing is outstanding; a quiet session costs no calls.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import grpc

from kvferry.v1 import offload_pb2
from kvferry_client import codec
from kvferry_client.jobs import Recorded
from kvferry_client.session import FAILURE_LINE, SESSION_GONE_CODES, code_of, describe
from kvferry_client.shared import logger

if TYPE_CHECKING:
    from kvferry_client.session import Session
    from kvferry_client.shared import Shared

MAX_POLL_SECONDS: Final = 20.0
POLL_GRACE_SECONDS: Final = 2.0
"""How much longer than the daemon the call waits."""
FIRST_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 1.0
GIVE_UP_CODES: Final = SESSION_GONE_CODES | {grpc.StatusCode.INVALID_ARGUMENT}


class Poller:
    """Body of the poll thread."""

    def __init__(self, shared: Shared) -> None:
        """Keep the shared state; touches nothing yet."""
        self._shared = shared
        self._retry = FIRST_RETRY_SECONDS

    def run(self) -> None:
        """Poll until the client is closed and its session has ended."""
        while (todo := self._next_poll()) is not None:
            session, request = todo
            try:
                reply = session.stub().Poll(
                    request, timeout=codec.seconds_of(request.max_wait) + POLL_GRACE_SECONDS
                )
            except (grpc.RpcError, ValueError) as error:
                self._on_failure(session, error)
                continue
            self._retry = FIRST_RETRY_SECONDS
            session.poll_stall.answered()
            self._on_reply(session, request.ack_seq, reply)

    def _next_poll(self) -> tuple[Session, offload_pb2.PollRequest] | None:
        shared = self._shared
        with shared.lock:
            while True:
                session = shared.session
                if session is None and shared.closing:
                    return None
                if session is not None and session.jobs.needs_poll:
                    break
                shared.poller_wakeup.wait()
            wait = min(session.limits.max_wait_seconds, MAX_POLL_SECONDS)
            return session, offload_pb2.PollRequest(
                session=session.ref,
                ack_seq=session.jobs.ack_seq,
                max_wait=codec.duration(wait if session.jobs.sent_parts else 0.0),
            )

    def _on_reply(self, session: Session, ack_seq: int, reply: offload_pb2.PollResponse) -> None:
        shared = self._shared
        if reply.boot_id != session.boot_id:
            self._shared.give_up(session, "another daemon answers (new boot id)")
            self._pause()
            return
        malformed = False
        results = [codec.wire_result(result) for result in reply.results]
        with shared.lock:
            shared.call_answered()
            session.jobs.acknowledged(ack_seq)
            for result in results:
                match session.jobs.record(result):
                    case Recorded.DUPLICATE:
                        shared.counters["results_duplicate"] += 1
                    case Recorded.UNKNOWN_JOB:
                        shared.counters["results_unknown"] += 1
                    case Recorded.MALFORMED:
                        malformed = True
                    case Recorded.TAKEN:
                        pass
            if session is shared.session:
                shared.collect()
            shared.sender_wakeup.set()
        if malformed:
            self._shared.give_up(session, "a result doesn't match its job")
        if reply.superseded:
            self._pause()

    def _on_failure(self, session: Session, error: Exception) -> None:
        with self._shared.lock:
            is_news = self._shared.call_failed(session, time.monotonic())
        if is_news:
            logger.warning(FAILURE_LINE, describe(error))
        stalled = session.poll_stall.failed(time.monotonic())
        if code_of(error) in GIVE_UP_CODES:
            self._shared.give_up(session, f"the daemon refuses to report: {describe(error)}")
        elif stalled:
            self._shared.give_up(session, f"calls keep failing: {describe(error)}")
        self._pause()

    def _pause(self) -> None:
        with self._shared.lock:
            self._shared.poller_wakeup.wait(self._retry)
        self._retry = min(2 * self._retry, MAX_RETRY_SECONDS)
