"""`kvferry jobs`: what a running daemon has accepted and its engines have not acknowledged."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_server.core.errors import NotFound
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .settings import load_settings
from .status_text import job_table
from .watch import show


def run(args: argparse.Namespace) -> int:
    """List the jobs once, or with `--watch` each second until Ctrl-C.

    Raises:
        Unavailable: no daemon answers (without `--watch`).
        FailedPrecondition: the daemon answers with an error.
        NotFound: `--session` names none.
    """
    socket = Path(load_settings(args).config.sockets.directory) / ADMIN_SOCKET

    def read() -> str:
        found = _read(socket, args.session or "")
        if not args.json:
            return "\n".join(job_table(found.jobs)) if found.jobs else "no jobs"
        fields = MessageToDict(
            found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return json.dumps(fields)

    return show(read, watch=args.watch, as_json=args.json)


def _read(socket: Path, session: str) -> admin_pb2.ListJobsResponse:
    with open_channel(socket) as channel, explained(socket):
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        if session:
            session = _whole_id(stub, session)
        request = admin_pb2.ListJobsRequest(session_id=session)
        return stub.ListJobs(request, timeout=CALL_SECONDS)


def _whole_id(stub: admin_pb2_grpc.AdminServiceStub, start: str) -> str:
    answer = stub.ListSessions(admin_pb2.ListSessionsRequest(), timeout=CALL_SECONDS)
    found = [each.session_id for each in answer.sessions if each.session_id.startswith(start)]
    if len(found) != 1:
        raise NotFound(
            f"{len(found)} sessions have an id that starts so; `kvferry status` lists them",
            reason="NO_SESSION",
        )
    return found[0]
