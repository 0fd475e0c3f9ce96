"""`grpc.health.v1` for both sockets: overall and per service.

SERVING means that the daemon answers; it says nothing of the object store, whose failure is
degraded service (AdminService.GetServerInfo tells). From SIGTERM on: NOT_SERVING.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

__all__ = ["Health"]

_OVERALL = ""


class _Servicer(health.aio.HealthServicer):  # type: ignore[name-defined,misc]  # no stubs
    """The library's, which answers List with a traceback in the log at each call."""

    async def List(  # noqa: N802 - the contract's name
        self, _request: object, context: grpc.aio.ServicerContext[object, object]
    ) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "use Check")


class Health:
    """One servicer for one gRPC server, and its reflection."""

    def __init__(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        self._servicer = _Servicer()
        self._names = (_OVERALL, *services, health.SERVICE_NAME)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def serving(self) -> None:
        """The daemon answers."""
        for name in self._names:
            await self._servicer.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stopping(self) -> None:
        """The daemon takes no new work; nothing changes this any more."""
        await self._servicer.enter_graceful_shutdown()
