"""`OffloadService`: the data path's RPCs, each a translation to one call of runner or sessions."""

from __future__ import annotations

from typing import cast

import grpc.aio
from google.protobuf.message import Message

from kvferry.v1 import offload_pb2, offload_pb2_grpc
from kvferry_server.core.errors import PermissionDenied
from kvferry_server.core.types import Admission, JobKind

from . import codec
from .runner import Runner
from .sessions import SessionTable
from .settings import ServerSettings

__all__ = ["OffloadServicer"]

_Context = grpc.aio.ServicerContext[Message, Message]


class OffloadServicer(offload_pb2_grpc.OffloadServiceServicer):
    """Every call but AttachRegion is authorised by its session's token."""

    def __init__(self, runner: Runner, sessions: SessionTable, settings: ServerSettings) -> None:
        self._runner = runner
        self._sessions = sessions
        self._settings = settings
        self._limits = runner.engine.settings

    async def AttachRegion(
        self, request: offload_pb2.AttachRegionRequest, context: _Context
    ) -> offload_pb2.AttachRegionResponse:
        if not self._settings.debug_attach_by_name:
            raise PermissionDenied(
                "attaching by name is switched off: use lease.sock, or start the daemon with "
                "--debug-attach-by-name",
                reason="ATTACH_BY_NAME_OFF",
            )
        return self._sessions.attach_by_name(request)

    async def DetachRegion(
        self, request: offload_pb2.DetachRegionRequest, context: _Context
    ) -> offload_pb2.DetachRegionResponse:
        session = self._sessions.authenticate(request.session)
        await self._sessions.detach(session, self._wait(request, context))
        return offload_pb2.DetachRegionResponse(boot_id=self._sessions.boot_id)

    async def Lookup(
        self, request: offload_pb2.LookupRequest, context: _Context
    ) -> offload_pb2.LookupResponse:
        session = self._sessions.authenticate(request.session)
        seconds = codec.lookup_seconds(request, self._limits.lookup_seconds)
        groups = codec.lookup_groups(request.groups)
        verdicts = await self._runner.lookup(session.session_id, groups, seconds)
        return offload_pb2.LookupResponse(
            boot_id=self._sessions.boot_id, groups=codec.verdicts(verdicts)
        )

    async def Store(
        self, request: offload_pb2.StoreRequest, context: _Context
    ) -> offload_pb2.StoreResponse:
        admissions = self._submit(request, JobKind.STORE)
        return offload_pb2.StoreResponse(
            boot_id=self._sessions.boot_id, admissions=codec.admissions(admissions)
        )

    async def Load(
        self, request: offload_pb2.LoadRequest, context: _Context
    ) -> offload_pb2.LoadResponse:
        admissions = self._submit(request, JobKind.LOAD)
        return offload_pb2.LoadResponse(
            boot_id=self._sessions.boot_id, admissions=codec.admissions(admissions)
        )

    async def Poll(
        self, request: offload_pb2.PollRequest, context: _Context
    ) -> offload_pb2.PollResponse:
        session = self._sessions.authenticate(request.session)
        wait = self._wait(request, context)
        reply = await self._runner.poll(session.session_id, request.ack_seq, wait)
        return offload_pb2.PollResponse(
            boot_id=self._sessions.boot_id,
            results=codec.poll_results(reply.results),
            superseded=reply.superseded,
        )

    async def Drain(
        self, request: offload_pb2.DrainRequest, context: _Context
    ) -> offload_pb2.DrainResponse:
        session = self._sessions.authenticate(request.session)
        running = await self._runner.drain(session.session_id, self._wait(request, context))
        return offload_pb2.DrainResponse(boot_id=self._sessions.boot_id, running_jobs=running)

    def _submit(
        self, request: offload_pb2.StoreRequest | offload_pb2.LoadRequest, kind: JobKind
    ) -> tuple[Admission, ...]:
        session = self._sessions.authenticate(request.session)
        return self._runner.submit(session.session_id, kind, codec.jobs(request.jobs))

    def _wait(
        self,
        request: offload_pb2.DetachRegionRequest
        | offload_pb2.PollRequest
        | offload_pb2.DrainRequest,
        context: _Context,
    ) -> float:
        """The call's `max_wait`, cut so that the answer comes before the call's deadline."""
        wait = codec.wait_seconds(request.max_wait, self._limits.max_wait_seconds)
        remaining = cast("float | None", context.time_remaining())
        return wait if remaining is None else codec.before_deadline(wait, remaining)
