"""`kvferry health`: a real health call through the daemon's socket, for exec probes.

Loads neither NIXL nor boto3, so that a probe stays cheap.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvferry_server.core.errors import Unavailable
from kvferry_server.service.settings import OFFLOAD_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .settings import load_settings


def run(args: argparse.Namespace) -> int:
    """Ask once.

    Raises:
        Unavailable: no daemon answers, or it does not serve.
    """
    require_serving(Path(load_settings(args).config.sockets.directory) / OFFLOAD_SOCKET)
    print("serving")
    return 0


def require_serving(socket: Path) -> None:
    """Blocking: one health call.

    Raises:
        Unavailable: no daemon answers, or it does not serve.
    """
    with open_channel(socket) as channel, explained(socket):
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS
        )
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"the daemon at {socket} does not serve", reason="NOT_SERVING")
