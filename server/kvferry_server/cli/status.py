"""`kvferry status`: what a running daemon does, from its admin socket.

Owns the reading; `status_text` owns the words.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .settings import load_settings
from .status_text import render
from .watch import show


@dataclass(frozen=True, slots=True)
class Reading:
    """Three answers of one daemon, taken one after the other."""

    server: admin_pb2.GetServerInfoResponse
    sessions: admin_pb2.ListSessionsResponse
    jobs: admin_pb2.ListJobsResponse


def run(args: argparse.Namespace) -> int:
    """Show one reading, or with `--watch` one each second until Ctrl-C.

    Raises:
        Unavailable: no daemon answers (without `--watch`).
        FailedPrecondition: the daemon answers with an error.
    """
    socket = Path(load_settings(args).config.sockets.directory) / ADMIN_SOCKET

    def read() -> str:
        return _shown(_read(socket), as_json=args.json)

    return show(read, watch=args.watch, as_json=args.json)


def _read(socket: Path) -> Reading:
    with open_channel(socket) as channel, explained(socket):
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        return Reading(
            stub.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=CALL_SECONDS),
            stub.ListSessions(admin_pb2.ListSessionsRequest(), timeout=CALL_SECONDS),
            stub.ListJobs(admin_pb2.ListJobsRequest(), timeout=CALL_SECONDS),
        )


def _shown(reading: Reading, *, as_json: bool) -> str:
    if not as_json:
        return render(reading.server, reading.sessions.sessions, reading.jobs.jobs, time.time())
    server, sessions, jobs = (
        MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for answer in (reading.server, reading.sessions, reading.jobs)
    )
    return json.dumps({"server": server, **sessions, **jobs})
