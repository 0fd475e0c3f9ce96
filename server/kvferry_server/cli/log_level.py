"""`kvferry log-level`: how much a running daemon writes, until its next start."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .settings import load_settings


def run(args: argparse.Namespace) -> int:
    """Change the level and say what it was.

    Raises:
        Unavailable: no daemon answers.
        FailedPrecondition: the daemon answers with an error.
    """
    socket = Path(load_settings(args).config.sockets.directory) / ADMIN_SOCKET
    request = admin_pb2.SetLogLevelRequest(level=args.level)
    with open_channel(socket) as channel, explained(socket):
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        answer = stub.SetLogLevel(request, timeout=CALL_SECONDS)
    print(f"{args.level} (was {answer.previous_level})")
    return 0
