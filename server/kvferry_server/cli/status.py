"""`kvferry status`: what a running daemon does, from its admin socket.

Owns the reading and the redrawing; `status_text` owns the words.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_server.core.errors import Unavailable
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .settings import load_settings
from .status_text import render

WATCH_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J"


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
    if not args.watch:
        print(_shown(_read(socket), as_json=args.json))
        return 0
    try:
        while True:
            _redraw(_watched(socket, as_json=args.json), as_json=args.json)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0


def _read(socket: Path) -> Reading:
    with open_channel(socket) as channel, explained(socket):
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        return Reading(
            stub.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=CALL_SECONDS),
            stub.ListSessions(admin_pb2.ListSessionsRequest(), timeout=CALL_SECONDS),
            stub.ListJobs(admin_pb2.ListJobsRequest(), timeout=CALL_SECONDS),
        )


def _watched(socket: Path, *, as_json: bool) -> str:
    """Like `_shown`, but an absent daemon is a state to show, not an error."""
    try:
        return _shown(_read(socket), as_json=as_json)
    except Unavailable as error:
        return json.dumps({"error": error.message}) if as_json else f"{error.message}; waiting"


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


def _redraw(text: str, *, as_json: bool) -> None:
    if sys.stdout.isatty() and not as_json:
        print(_CLEAR, end="")
    print(text, flush=True)
