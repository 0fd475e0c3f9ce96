"""`AdminService`: shows what the daemon does and changes a few things, on admin.sock only."""

from __future__ import annotations

import logging
from typing import cast

import grpc.aio
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from kvferry.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from kvferry_server import __version__
from kvferry_server.core.errors import InvalidArgument
from kvferry_server.core.events import SetPaused
from kvferry_server.core.ports import ObjectStore
from kvferry_server.core.types import BreakerState, JobKind
from kvferry_server.core.views import JobView, SessionView

from . import codec
from .runner import Runner
from .sessions import Session, SessionTable
from .status import cut
from .store_check import StoreCheck

__all__ = ["AdminServicer"]

DEFAULT_JOBS = 1_000
MAX_JOBS = 10_000
LEVELS = ("debug", "info", "warning", "error")
_LOGGER = "kvferry_server"

_Context = grpc.aio.ServicerContext[Message, Message]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Reads the engine between its steps."""

    def __init__(
        self, runner: Runner, sessions: SessionTable, store: ObjectStore, check: StoreCheck
    ) -> None:
        self._runner = runner
        self._sessions = sessions
        self._store = store
        self._check = check
        self._start_time = Timestamp()
        self._start_time.GetCurrentTime()

    def server_info(self) -> admin_pb2.GetServerInfoResponse:
        """A snapshot of the daemon. Event loop's thread only."""
        engine = self._runner.engine
        now = self._runner.now()
        dead = [
            (session.region.mapped_bytes, now - session.ended_at)
            for session in self._sessions
            if session.ended_at is not None
        ]
        return admin_pb2.GetServerInfoResponse(
            version=__version__,
            boot_id=self._sessions.boot_id,
            start_time=self._start_time,
            store=self._store_status(),
            stores_paused=engine.paused[JobKind.STORE],
            loads_paused=engine.paused[JobKind.LOAD],
            counters=dict(engine.counters),
            sessions=len(self._sessions),
            queued_store_chunks=engine.queued[JobKind.STORE],
            queued_load_chunks=engine.queued[JobKind.LOAD],
            active_chunks=sum(engine.active.values()),
            active_store_chunks=engine.active[JobKind.STORE],
            active_load_chunks=engine.active[JobKind.LOAD],
            queued_store_bytes=engine.queued_store_bytes,
            oldest_active=codec.duration(engine.oldest_active_seconds),
            open_lookups=engine.open_lookups,
            index_entries=engine.presence_entries,
            region_bytes=sum(session.region.mapped_bytes for session in self._sessions),
            dead_engine_bytes=sum(size for size, _age in dead),
            dead_engine_age=codec.duration(max((age for _size, age in dead), default=0.0)),
        )

    async def GetServerInfo(
        self, request: admin_pb2.GetServerInfoRequest, context: _Context
    ) -> admin_pb2.GetServerInfoResponse:
        return self.server_info()

    async def ListSessions(
        self, request: admin_pb2.ListSessionsRequest, context: _Context
    ) -> admin_pb2.ListSessionsResponse:
        views = {view.spec.session_id: view for view in self._runner.engine.sessions()}
        return admin_pb2.ListSessionsResponse(
            sessions=[_session_info(each, views.get(each.session_id)) for each in self._sessions]
        )

    async def ListJobs(
        self, request: admin_pb2.ListJobsRequest, context: _Context
    ) -> admin_pb2.ListJobsResponse:
        limit = request.limit or DEFAULT_JOBS
        if limit > MAX_JOBS:
            raise InvalidArgument(
                f"limit must be at most {MAX_JOBS}, is {limit}",
                reason="OUT_OF_RANGE",
                field="limit",
            )
        now = self._runner.now()
        views = self._runner.engine.jobs(request.session_id, limit)
        return admin_pb2.ListJobsResponse(jobs=[_job_info(view, now) for view in views])

    async def CheckStore(
        self, request: admin_pb2.CheckStoreRequest, context: _Context
    ) -> admin_pb2.CheckStoreResponse:
        found = await self._check.run()
        return admin_pb2.CheckStoreResponse(
            store=self._store_status(), steps=codec.preflight_steps(found.steps)
        )

    async def Pause(
        self, request: admin_pb2.PauseRequest, context: _Context
    ) -> admin_pb2.PauseResponse:
        self._set_paused(stores=request.stores, loads=request.loads, paused=True)
        paused = self._runner.engine.paused
        return admin_pb2.PauseResponse(
            stores_paused=paused[JobKind.STORE], loads_paused=paused[JobKind.LOAD]
        )

    async def Resume(
        self, request: admin_pb2.ResumeRequest, context: _Context
    ) -> admin_pb2.ResumeResponse:
        self._set_paused(stores=request.stores, loads=request.loads, paused=False)
        paused = self._runner.engine.paused
        return admin_pb2.ResumeResponse(
            stores_paused=paused[JobKind.STORE], loads_paused=paused[JobKind.LOAD]
        )

    async def SetLogLevel(
        self, request: admin_pb2.SetLogLevelRequest, context: _Context
    ) -> admin_pb2.SetLogLevelResponse:
        if request.level not in LEVELS:
            raise InvalidArgument(
                f"level must be one of {', '.join(LEVELS)}", reason="BAD_LEVEL", field="level"
            )
        logger = logging.getLogger(_LOGGER)
        previous = logging.getLevelName(logger.getEffectiveLevel()).lower()
        logger.setLevel(request.level.upper())
        return admin_pb2.SetLogLevelResponse(previous_level=previous)

    def _set_paused(self, *, stores: bool, loads: bool, paused: bool) -> None:
        if not (stores or loads):
            raise InvalidArgument(
                "set stores, loads or both", reason="NOTHING_SELECTED", field="stores"
            )
        self._runner.send(
            SetPaused(stores=paused if stores else None, loads=paused if loads else None)
        )

    def _store_status(self) -> admin_pb2.StoreStatus:
        breakers = self._runner.engine.breaker_states(self._runner.now())
        return admin_pb2.StoreStatus(
            url=self._store.url,
            ready=self._check.ready,
            settings=self._check.settings,
            problem=cut(self._check.problem),
            read_breaker=_breaker(breakers[JobKind.LOAD]),
            write_breaker=_breaker(breakers[JobKind.STORE]),
            max_active_chunks=self._store.max_active_chunks,
        )


def _breaker(state: BreakerState) -> admin_pb2.BreakerState:
    return cast("admin_pb2.BreakerState", state)


def _session_info(session: Session, view: SessionView | None) -> admin_pb2.SessionInfo:
    """`view` is None while a quiet session's region is being unmapped."""
    attached = Timestamp()
    attached.FromNanoseconds(int(session.attached_at * 1e9))
    return admin_pb2.SessionInfo(
        session_id=session.session_id,
        engine_id=session.spec.engine_id,
        namespace=session.spec.space,
        slots=session.spec.slots,
        slot_bytes=session.spec.slot_bytes,
        region_bytes=session.region.mapped_bytes,
        attach_time=attached,
        open_jobs=view.open_jobs if view else 0,
        active_chunks=view.active_chunks if view else 0,
        closing=view.closing if view else True,
    )


def _job_info(view: JobView, now: float) -> admin_pb2.JobInfo:
    return admin_pb2.JobInfo(
        session_id=view.session_id,
        job_id=view.job_id,
        kind=cast("types_pb2.JobKind", view.kind),
        request_id=view.request_id,
        queued_chunks=view.queued_chunks,
        active_chunks=view.active_chunks,
        finished_chunks=view.finished_chunks,
        age=codec.duration(max(0.0, now - view.accepted_at)),
    )
