"""Calls from a command to a running daemon over one of its sockets.

Owns the channel's settings and the words for its failures. Imports core, grpc and nothing heavier.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import grpc

from kvferry_server.core.errors import FailedPrecondition, Unavailable

from .text import printable

CALL_SECONDS = 3.0
_MAX_MESSAGE_BYTES = 64 << 20


@contextmanager
def open_channel(socket: Path) -> Iterator[grpc.Channel]:
    """A channel to a daemon's socket; it connects at the first call."""
    options = [
        ("grpc.default_authority", "localhost"),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ]
    with grpc.insecure_channel(f"unix:{quote(os.fsencode(socket))}", options) as channel:
        yield channel


@contextmanager
def explained(socket: Path) -> Iterator[None]:
    """Turn a failed call into words.

    Raises:
        Unavailable: no daemon answers there.
        FailedPrecondition: it answers with another error.
    """
    name = printable(str(socket))
    try:
        yield
    except grpc.RpcError as error:
        code = error.code()
        if code is grpc.StatusCode.UNAVAILABLE:
            raise Unavailable(_absent(socket), reason="NO_DAEMON") from None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Unavailable(
                f"the daemon at {name} does not answer within {CALL_SECONDS:g} s",
                reason="NO_ANSWER",
            ) from None
        raise FailedPrecondition(
            f"the daemon at {name} answers {code.name}: {printable(error.details() or '')}",
            reason=code.name,
        ) from None


def _absent(socket: Path) -> str:
    try:
        socket.stat()
    except FileNotFoundError:
        why = "there is no such socket"
    except OSError as error:
        why = f"the socket can't be reached: {error.strerror}"
    else:
        why = "nobody answers at the socket, or it may not be opened by this user"
    return (
        f"no daemon listens at {printable(str(socket))} ({why}); start one with "
        "`kvferry serve`, or name its directory with --socket-dir or KVFERRY_SOCKET_DIR"
    )
