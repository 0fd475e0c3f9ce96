"""The gRPC channel to kvferry.sock: options that are known to work, opened lazily per process.

May import grpc and the stubs. Why each option: the authority would otherwise be the escaped
socket path, which strict servers refuse; an http_proxy variable must not catch a Unix
socket; pings without traffic get a client thrown out by servers that allow fewer; a
reconnect that backs off for minutes keeps the client away from a daemon that is back.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from kvferry.v1 import offload_pb2_grpc

SERVICE_SOCKET: Final = "kvferry.sock"
MAX_SOCKET_PATH_BYTES: Final = 107
MAX_REPLY_BYTES: Final = 64 << 20
KEEPALIVE_MS: Final = 60_000
"""Only while calls run, and not more often than the daemon permits."""
BACKOFF_FIRST_MS: Final = 100
BACKOFF_MAX_MS: Final = 1_000
CONNECT_MS: Final = 5_000
"""How long one attempt to connect may take until the daemon's first frame: a busy machine needs
more than a moment. gRPC calls it the minimal backoff; it doesn't delay the next attempt."""

CHANNEL_OPTIONS: Final[tuple[tuple[str, int | str], ...]] = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", BACKOFF_FIRST_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", BACKOFF_MAX_MS),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

_left_open: list[grpc.Channel] = []
"""Never destroyed: the parent process's in a forked child, and those whose thread is missing."""


def check_socket_dir(socket_dir: str) -> None:
    """Raise ValueError if the socket's path in `socket_dir` is longer than the kernel takes."""
    path = Path(socket_dir).absolute() / SERVICE_SOCKET
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        message = (
            f"the socket path {path} has {size} bytes, the kernel takes {MAX_SOCKET_PATH_BYTES}: "
            "choose a shorter socket_dir"
        )
        raise ValueError(message)


class DaemonChannel:
    """A channel that opens at the first call, and anew in a forked child. Thread-safe."""

    def __init__(
        self, socket_dir: str, options: tuple[tuple[str, int | str], ...] = CHANNEL_OPTIONS
    ) -> None:
        """Remember where to connect; connects to nothing."""
        self._target = f"unix:{quote(str(Path(socket_dir).absolute() / SERVICE_SOCKET))}"
        self._options = options
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._channel: grpc.Channel | None = None
        self._stub: offload_pb2_grpc.OffloadServiceStub | None = None
        self._closed = False

    def stub(self) -> offload_pb2_grpc.OffloadServiceStub:
        """Return this process's stub; every call on it must carry a timeout.

        Raises ValueError after `close`, as calls on a closed channel do.
        """
        if self._pid != os.getpid():
            self._start_over_in_child()
        with self._lock:
            if self._closed:
                raise ValueError("the channel to the daemon is closed")
            if self._stub is None:
                self._channel = grpc.insecure_channel(self._target, options=self._options)
                self._stub = offload_pb2_grpc.OffloadServiceStub(self._channel)
            return self._stub

    def close(self) -> None:
        """Close the channel, which ends calls in flight as CANCELLED. Safe to repeat."""
        if self._pid != os.getpid():
            self._start_over_in_child()
        with self._lock:
            channel, self._channel, self._stub = self._channel, None, None
            self._closed = True
        if channel is not None:
            channel.close()

    def abandon(self) -> None:
        """Use it no more, and don't close it: to close one without gRPC's thread takes for ever."""
        with self._lock:
            if self._channel is not None:
                _left_open.append(self._channel)
            self._channel, self._stub, self._closed = None, None, True

    def _start_over_in_child(self) -> None:
        # The lock may have been held by a thread that this process doesn't have.
        if self._channel is not None:
            _left_open.append(self._channel)
        self._lock, self._channel, self._stub = threading.Lock(), None, None
        self._pid = os.getpid()
