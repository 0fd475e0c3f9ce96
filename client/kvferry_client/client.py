"""`Client`: the public surface. Submitting and taking touch memory only; threads do the rest.

Memory: the region belongs to the caller; the client passes its descriptor on and never
reads or writes it. Lifecycle: `start` (or the first call) starts three daemon threads;
`close` half-closes the lease and waits. Failure: nothing here raises for what the daemon
does; without one, lookups are misses and jobs end at once as NOT_SENT. Threading: all
methods may be called from any thread; only `drain`, `close` and the `wait_` methods block.
A forked child starts over, without its parent's session.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import grpc

from kvferry.v1 import offload_pb2
from kvferry_client import codec
from kvferry_client.channel import check_socket_dir
from kvferry_client.connection import Connection
from kvferry_client.forks import in_child
from kvferry_client.poller import Poller
from kvferry_client.region import check_view
from kvferry_client.sender import Sender
from kvferry_client.shared import Config, Shared, logger
from kvferry_client.starter import Starter
from kvferry_client.types import JobKind, RequestContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvferry_client.session import Session
    from kvferry_client.types import ClientState, JobResult, LookupReply

MAX_QUEUED_LOOKUP_KEYS: Final = 1 << 20
"""Keys above this that wait to be asked for are UNKNOWN at once."""
DRAIN_STEP_SECONDS: Final = 1.0
DRAIN_RETRY_SECONDS: Final = 0.1
DRAIN_LOG_SECONDS: Final = 5.0
MIN_KEY_BYTES: Final = 5

_inherited: list[Shared] = []
"""State of the parent process: a forked child may not destroy what gRPC holds in it."""


class Client:
    """A client of one daemon for one region; see the module's docstring."""

    def __init__(  # noqa: PLR0913 - options by name
        self,
        socket_dir: str | os.PathLike[str],
        region_view: memoryview,
        *,
        namespace: str,
        engine_id: str,
        slot_bytes: int | None = None,
        vllm_namespace: str = "",
        lookup_timeout_s: float = 2.0,
        max_queued_jobs: int = 4096,
        stall_timeout_s: float = 30.0,
    ) -> None:
        """Prepare a client; nothing is connected and no thread started yet.

        `region_view` has the shape (slots, stride); `slot_bytes` of each slot are moved, by
        default the stride. `vllm_namespace` is what vLLM's own tiers would use, for a daemon that
        uses their names. A lookup is a miss after `lookup_timeout_s` seconds. Jobs above
        `max_queued_jobs` that wait to be sent, of each kind, end at once as NOT_SENT. If calls
        fail for `stall_timeout_s` seconds without a break though the lease lives, the client
        asks the daemon to end the session, and attaches anew once it has.
        Raises RegionError for an unsuitable view, ValueError for too long a socket path.
        """
        slots, stride = check_view(region_view)
        check_socket_dir(os.fspath(socket_dir))
        self._config = Config(
            socket_dir=os.fspath(socket_dir),
            region_view=region_view,
            namespace=namespace,
            vllm_namespace=vllm_namespace,
            engine_id=engine_id,
            slots=slots,
            slot_bytes=stride if slot_bytes is None else slot_bytes,
            lookup_timeout_s=lookup_timeout_s,
            max_queued_jobs=max_queued_jobs,
            max_queued_lookup_keys=MAX_QUEUED_LOOKUP_KEYS,
            stall_timeout_s=stall_timeout_s,
        )
        self._begin()
        in_child(self, Client._start_over_in_child)

    def start(self) -> None:
        """Start connecting in the background. Safe to repeat; the first use does it too."""
        self._starter.start()

    def store(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        context: RequestContext | None = None,
    ) -> int:
        """Queue the slots to be stored under the keys; return the job's id. Never blocks."""
        return self._submit(JobKind.STORE, keys, slots, context)

    def load(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        context: RequestContext | None = None,
    ) -> int:
        """Queue the slots to be filled from the keys; return the job's id. Never blocks."""
        return self._submit(JobKind.LOAD, keys, slots, context)

    def lookup(
        self,
        keys: Sequence[bytes],
        prefix_ordered: bool = False,  # noqa: FBT001, FBT002 - the wire's name says what it is
        context: RequestContext | None = None,
    ) -> int:
        """Ask which keys are stored; return a ticket. Never blocks.

        With `prefix_ordered`, keys behind the first absent one may stay UNKNOWN.
        """
        self.start()
        asked = tuple(map(bytes, keys))
        deadline = time.monotonic() + self._config.lookup_timeout_s
        shared = self._shared
        ticket = next(shared.ids)
        shared.hand_in(
            _admit_lookup,
            shared,
            ticket,
            asked,
            context or RequestContext(),
            prefix_ordered,
            deadline,
        )
        return ticket

    def take_results(self, max_chunks: int | None = None) -> list[JobResult]:
        """Return the jobs that finished since the last call, each exactly once. Never blocks.

        With `max_chunks` some of them: no more once they have so many chunks.
        """
        return self._shared.take_results(max_chunks)

    @property
    def has_news(self) -> bool:
        """Whether `take_results` may return something. Never blocks."""
        shared = self._shared
        return bool(shared.results or shared.handed_in)

    def take_lookups(self, max_keys: int | None = None) -> list[LookupReply]:
        """Return the lookups that were answered or expired since the last call. Never blocks.

        With `max_keys` some of them: no more once they have so many keys.
        """
        return self._shared.take_lookups(max_keys)

    @property
    def state(self) -> ClientState:
        """Where the client stands with its daemon. Never blocks."""
        return self._shared.state

    @property
    def last_error(self) -> str:
        """Why there is no session, in one line; empty if there is one."""
        return self._shared.last_error

    @property
    def counters(self) -> dict[str, int]:
        """Totals since the construction, all names present from the start. Never blocks."""
        return self._shared.totals()

    @property
    def open_jobs(self) -> int:
        """Jobs without a result yet."""
        with self._shared.lock:
            self._shared.take_in()
            session = self._shared.session
            return session.jobs.open_jobs if session is not None else 0

    def wait_attached(self, timeout_s: float) -> bool:
        """Wait until the region is attached; return whether it is."""
        self.start()
        shared = self._shared
        with shared.lock:
            return shared.changed.wait_for(lambda: shared.usable_session is not None, timeout_s)

    def wait_results(self, timeout_s: float) -> bool:
        """Wait until `take_results` or `take_lookups` has something; return whether it has."""
        shared = self._shared
        end = time.monotonic() + timeout_s
        with shared.lock:
            while True:
                shared.take_in()
                now = time.monotonic()
                expiry = shared.lookups.next_deadline
                expired = expiry is not None and expiry <= now
                if shared.has_results or shared.lookups.has_replies or expired:
                    return True
                if now >= end:
                    return False
                shared.changed.wait((end if expiry is None else min(end, expiry)) - now)

    def change_namespace(self, namespace: str, vllm_namespace: str) -> None:
        """Go on with other objects: end the session, then attach anew. Never blocks.

        Until then lookups are misses and jobs end at once as NOT_SENT.
        """
        self._config = replace(self._config, namespace=namespace, vllm_namespace=vllm_namespace)
        shared = self._shared
        with shared.lock:
            shared.config = self._config
            session = shared.session
            ended = session is not None and shared.begin_ending(session, "the namespace changed")
        if session is not None and ended:
            session.lease.half_close()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until every job has a result; return False if `timeout_s` ran out first.

        Jobs not yet sent end as NOT_SENT; the daemon cancels what it has queued and finishes
        what it has begun. Without a timeout only results or the lease's end let it return.
        """
        shared = self._shared
        started = time.monotonic()
        next_log = started + DRAIN_LOG_SECONDS
        while True:
            with shared.lock:
                shared.take_in()
                shared.cancel_queued("drained")
                session = shared.session
                open_jobs = session.jobs.open_jobs if session is not None else 0
            if session is None or not open_jobs:
                return True
            now = time.monotonic()
            if timeout_s is not None and now - started >= timeout_s:
                return False
            if now >= next_log:
                next_log = now + DRAIN_LOG_SECONDS
                logger.warning(
                    "still draining after %.0f s: %d jobs open in kvferry", now - started, open_jobs
                )
            self._drain_step(session)

    def close(self, timeout_s: float = 5.0) -> bool:
        """End the session and wait for the daemon to let go of the region; safe to repeat.

        Returns False if it had not within `timeout_s`: the region is then still in use, and
        the threads stay until it is not.
        """
        shared = self._shared
        with shared.lock:
            shared.take_in()
            shared.cancel_queued("closed")
            shared.closing = True
            session, attaching = shared.session, shared.attaching
            if session is not None:
                session.ending = True
            shared.lookups.end()
            shared.wake_all()
        if session is not None:
            session.lease.half_close()
        if attaching is not None:
            attaching.half_close()
        with shared.lock:
            return shared.changed.wait_for(
                lambda: shared.session is None and shared.attaching is None, timeout_s
            )

    def _submit(
        self,
        kind: JobKind,
        keys: Sequence[bytes],
        slots: Sequence[int],
        context: RequestContext | None,
    ) -> int:
        self.start()
        shared = self._shared
        job_id = next(shared.ids)
        job_keys = tuple(map(bytes, keys))
        job_slots = tuple(map(int, slots))
        shared.hand_in(
            _admit_job, shared, job_id, kind, job_keys, job_slots, context or RequestContext()
        )
        return job_id

    def _drain_step(self, session: Session) -> None:
        """Ask the daemon to drain once; a failed call only means to ask again."""
        shared = self._shared
        wait = min(session.limits.max_wait_seconds, DRAIN_STEP_SECONDS)
        request = offload_pb2.DrainRequest(session=session.ref, max_wait=codec.duration(wait))
        try:
            session.stub().Drain(request, timeout=wait + DRAIN_STEP_SECONDS)
        except (grpc.RpcError, ValueError):
            logger.debug("Drain was not answered", exc_info=True)
        with shared.lock:
            shared.changed.wait_for(
                lambda: shared.session is not session or not session.jobs.open_jobs,
                DRAIN_RETRY_SECONDS,
            )

    def _begin(self) -> None:
        shared = self._shared = Shared(self._config)
        # The connection last: a session needs the other two.
        self._starter = Starter(shared, Sender(shared), Poller(shared), Connection(shared))

    def _start_over_in_child(self) -> None:
        _inherited.append(self._shared)
        self._begin()


def _admit_job(
    shared: Shared,
    job_id: int,
    kind: JobKind,
    keys: tuple[bytes, ...],
    slots: tuple[int, ...],
    context: RequestContext,
) -> None:
    session = shared.usable_session
    if not keys and not slots:
        shared.finish_empty(job_id, kind)
    elif session is None:
        reason = "no_session" if shared.session is None else "session_ending"
        shared.not_sent(job_id, kind, len(keys), reason)
    elif not _is_valid(keys, slots, session, shared.config):
        shared.not_sent(job_id, kind, len(keys), "invalid")
    elif not session.jobs.submit(job_id, kind, keys, slots, context):
        shared.not_sent(job_id, kind, len(keys), "queue_full")
    else:
        shared.sender_wakeup.set()


def _admit_lookup(
    shared: Shared,
    ticket: int,
    keys: tuple[bytes, ...],
    context: RequestContext,
    prefix_ordered: bool,  # noqa: FBT001 - as the wire has it
    deadline: float,
) -> None:
    session = shared.usable_session
    lookups = shared.lookups
    if (
        session is not None
        and keys
        and _keys_fit(keys, session)
        and lookups.submit(ticket, keys, context, prefix_ordered=prefix_ordered, deadline=deadline)
    ):
        shared.sender_wakeup.set()
    else:
        lookups.answer_unknown(ticket, len(keys))
        shared.changed.notify_all()


def _is_valid(
    keys: tuple[bytes, ...], slots: tuple[int, ...], session: Session, config: Config
) -> bool:
    """Check what the daemon would refuse, so that one bad job doesn't cost a request."""
    return (
        len(keys) == len(slots)
        and len(set(keys)) == len(keys)
        and len(set(slots)) == len(slots)
        and min(slots) >= 0
        and max(slots) < config.slots
        and _keys_fit(keys, session)
    )


def _keys_fit(keys: tuple[bytes, ...], session: Session) -> bool:
    lengths = set(map(len, keys))
    return min(lengths) >= MIN_KEY_BYTES and max(lengths) <= session.limits.max_key_bytes
