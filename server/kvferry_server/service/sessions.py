"""Attached regions: identity, token, region and lease of each session, until it is quiet.

A session stays in the table until its region is unmapped, so that its memory can't be attached
twice; its lease ends after that, never before.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from kvferry.v1 import offload_pb2, types_pb2
from kvferry_server import __version__
from kvferry_server.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
)
from kvferry_server.core.naming import Naming, space_name
from kvferry_server.core.ports import FileRange, Region, RegionMapper
from kvferry_server.core.telemetry import SILENCE, Telemetry
from kvferry_server.core.types import SessionSpec

from . import codec
from .runner import Runner
from .settings import ServerSettings

__all__ = ["LeaseEnd", "Session", "SessionTable"]

_log = logging.getLogger(__name__)

FEATURES: frozenset[str] = frozenset()
"""Feature flags of this daemon; empty in the first version."""
TOKEN_BYTES = 32
_UNMAP_RETRY_SECONDS = 0.02


class LeaseEnd(Protocol):
    """The daemon's end of a lease."""

    def close(self) -> None:
        """Show end-of-file to the client."""


@dataclass(slots=True, eq=False)
class Session:
    """An attached region."""

    spec: SessionSpec
    token: bytes = field(repr=False)
    region: Region
    lease: LeaseEnd | None
    """None if it was attached by name."""
    attached_at: float
    """Unix time."""
    last_call: float
    """Monotonic seconds."""
    ended_at: float | None = None
    """Monotonic seconds; None while the engine uses it."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the region is unmapped and the lease closed."""

    @property
    def session_id(self) -> str:
        """The identifier, 32 hexadecimal characters."""
        return self.spec.session_id


class SessionTable:
    """All sessions. Used on the event loop's thread."""

    def __init__(
        self,
        runner: Runner,
        mapper: RegionMapper,
        settings: ServerSettings,
        boot_id: str,
        telemetry: Telemetry = SILENCE,
    ) -> None:
        self.boot_id = boot_id
        self._runner = runner
        self._telemetry = telemetry
        self._mapper = mapper
        self._settings = settings
        self._naming = Naming(settings.naming)
        self._sessions: dict[str, Session] = {}
        self._unmapping: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def attach(
        self,
        request: offload_pb2.AttachRegionRequest,
        descriptors: Sequence[int],
        lease: LeaseEnd | None,
        tenant: str,
    ) -> tuple[Session, offload_pb2.AttachRegionResponse]:
        """Map a region and open its session. The descriptors stay the caller's.

        Raises:
            KvferryError: the region or the request is refused; nothing is mapped.
        """
        codec.check_attach(request)
        space = self._settings.tenants.space(
            tenant, space_name(self._naming, request.namespace, request.vllm_namespace)
        )
        if len(self._sessions) >= self._settings.max_sessions:
            raise ResourceExhausted(
                f"max_sessions {self._settings.max_sessions} are attached",
                reason="TOO_MANY_SESSIONS",
            )
        specs = codec.segments(request)
        region = self._mapper.attach(
            descriptors, specs, request.slot_bytes, request.slot_stride_bytes
        )
        try:
            self._check_overlap(region)
            session = Session(
                SessionSpec(
                    session_id=uuid.uuid4().hex,
                    engine_id=request.engine_id,
                    space=space,
                    slots=sum(spec.slot_count for spec in specs),
                    slot_bytes=request.slot_bytes,
                ),
                secrets.token_bytes(TOKEN_BYTES),
                region,
                lease,
                time.time(),
                self._runner.now(),
            )
            self._runner.open_session(session.spec, region, lambda: self._quiet(session))
        except BaseException:
            region.close()
            raise
        self._sessions[session.session_id] = session
        _log.info(
            "session %s: engine %r attached %d slots of %d bytes",
            session.session_id,
            request.engine_id,
            session.spec.slots,
            session.spec.slot_bytes,
        )
        return session, self._response(session, request)

    def attach_by_name(
        self, request: offload_pb2.AttachRegionRequest
    ) -> offload_pb2.AttachRegionResponse:
        """Attach files of /dev/shm without a lease.

        Raises:
            KvferryError: the name, the region or the request is refused.
        """
        tenant = self._settings.tenants.of(None)
        codec.check_attach(request)
        with ExitStack() as opened:
            descriptors = []
            for segment in request.segments:
                descriptors.append(self._mapper.open_by_name(segment.shm_name))
                opened.callback(os.close, descriptors[-1])
            _session, response = self.attach(request, descriptors, None, tenant)
        return response

    def authenticate(self, ref: types_pb2.SessionRef) -> Session:
        """The session that a call acts on.

        Raises:
            NotFound: no such session.
            Unauthenticated: the token is not its own.
        """
        session = self._sessions.get(ref.session_id)
        if session is None:
            raise NotFound(
                "unknown session: it has ended or belongs to an earlier daemon; attach again "
                "once the lease is at end-of-file",
                reason="UNKNOWN_SESSION",
                field="session.session_id",
            )
        if not hmac.compare_digest(session.token, ref.token):
            raise Unauthenticated(
                "the token is not this session's", reason="WRONG_TOKEN", field="session.token"
            )
        session.last_call = self._runner.now()
        return session

    def end(self, session: Session) -> None:
        """The engine is done: end the session as soon as nothing runs. May be repeated."""
        if session.ended_at is None:
            session.ended_at = self._runner.now()
        self._runner.end_session(session.session_id)

    def lease_lost(self, session: Session) -> None:
        """The engine is gone without a word: end the session."""
        if session.ended_at is None:
            self._telemetry.lease_lost()
        self.end(session)

    async def detach(self, session: Session, wait_seconds: float) -> None:
        """End a session and wait until its region is unmapped.

        Raises:
            DeadlineExceeded: transfers still run; the detach goes on.
        """
        self.end(session)
        try:
            async with asyncio.timeout(wait_seconds):
                await session.gone.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"transfers still run after {wait_seconds:g} s; the detach goes on, call again",
                reason="STILL_RUNNING",
            ) from error

    def end_idle(self) -> None:
        """End sessions without a lease that nobody has named for too long."""
        before = self._runner.now() - self._settings.debug_idle_seconds
        for session in self:
            if session.lease is None and session.last_call < before:
                _log.info("session %s: idle, attached by name: ended", session.session_id)
                self.end(session)

    async def end_all(self) -> None:
        """End every session and wait until all regions are unmapped."""
        sessions = list(self)
        for session in sessions:
            self.end(session)
        for session in sessions:
            await session.gone.wait()

    def _check_overlap(self, region: Region) -> None:
        taken = [each for session in self._sessions.values() for each in session.region.ranges]
        for index, new in enumerate(region.ranges):
            for old in taken:
                if _overlap(new, old):
                    raise FailedPrecondition(
                        f"segments[{index}] overlaps a region that is attached: end that session "
                        "and wait for its lease's end-of-file first",
                        reason="REGION_OVERLAP",
                        field=f"segments[{index}]",
                    )
            taken.append(new)

    def _quiet(self, session: Session) -> None:
        task = asyncio.get_running_loop().create_task(self._unmap(session))
        self._unmapping.add(task)
        task.add_done_callback(self._unmapping.discard)

    async def _unmap(self, session: Session) -> None:
        """Unmap off the loop, since a large munmap takes long; then end the lease."""
        while True:
            try:
                await _off_the_loop(session.region.close)
            except BufferError:
                await asyncio.sleep(_UNMAP_RETRY_SECONDS)
            else:
                break
        if session.lease is not None:
            session.lease.close()
        del self._sessions[session.session_id]
        session.gone.set()
        _log.info("session %s: ended, region unmapped", session.session_id)

    def _response(
        self, session: Session, request: offload_pb2.AttachRegionRequest
    ) -> offload_pb2.AttachRegionResponse:
        return offload_pb2.AttachRegionResponse(
            session=types_pb2.SessionRef(session_id=session.session_id, token=session.token),
            boot_id=self.boot_id,
            limits=codec.limits(self._runner.engine.settings, self._settings.max_message_bytes),
            server_version=__version__,
            features=sorted(FEATURES.intersection(request.features)),
        )


async def _off_the_loop(work: Callable[[], None]) -> None:
    """On a thread; here, if the system allows no further one."""
    try:
        await asyncio.to_thread(work)
    except RuntimeError:
        work()


def _overlap(one: FileRange, other: FileRange) -> bool:
    same_file = (one.device, one.inode) == (other.device, other.inode)
    return same_file and one.start < other.end and other.start < one.end
