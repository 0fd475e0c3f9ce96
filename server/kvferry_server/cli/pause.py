"""`kvferry pause` and `kvferry resume`: the kill switch of a running daemon."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .settings import load_settings


def run(args: argparse.Namespace) -> int:
    """Pause or resume, and say what is on now.

    Raises:
        Unavailable: no daemon answers.
        FailedPrecondition: the daemon answers with an error.
    """
    socket = Path(load_settings(args).config.sockets.directory) / ADMIN_SOCKET
    stores, loads = args.what in {"stores", "all"}, args.what in {"loads", "all"}
    answer: admin_pb2.PauseResponse | admin_pb2.ResumeResponse
    with open_channel(socket) as channel, explained(socket):
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        if args.command == "pause":
            pause = admin_pb2.PauseRequest(stores=stores, loads=loads)
            answer = stub.Pause(pause, timeout=CALL_SECONDS)
        else:
            resume = admin_pb2.ResumeRequest(stores=stores, loads=loads)
            answer = stub.Resume(resume, timeout=CALL_SECONDS)
    print(f"stores {_word(answer.stores_paused)}, loads and lookups {_word(answer.loads_paused)}")
    return 0


def _word(paused: bool) -> str:  # noqa: FBT001 -- the contract's field
    return "paused" if paused else "on"
