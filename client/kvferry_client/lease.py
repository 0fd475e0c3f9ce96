"""The lease: a silent Unix stream connection whose end-of-file means "nobody touches your memory".

See proto/kvferry/v1/lease.proto. Owns the handshake, the wait for end-of-file and the
half-close. Once attached, the client never closes its own end before it has seen
end-of-file, and a forked child drops its copy of the descriptor without a shutdown, so
that it neither ends the lease nor delays its end. May import `errors`, `region` and stubs.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from kvferry.v1 import lease_pb2
from kvferry_client.errors import AttachRefusedError, DaemonUnreachableError, ProtocolError
from kvferry_client.forks import in_child

if TYPE_CHECKING:
    from kvferry.v1 import offload_pb2
    from kvferry_client.region import RegionSource

LEASE_SOCKET: Final = "lease.sock"
MAX_FRAME_BYTES: Final = 65_536
CONNECT_TIMEOUT_SECONDS: Final = 1.0
REMIND_SECONDS: Final = 10.0
"""How often a daemon that accepts but doesn't answer is mentioned in the log."""
logger = logging.getLogger("kvferry_client")

_HEADER: Final = struct.Struct(">I")


class Lease:
    """One connection to the lease socket. `half_close` may be called from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket."""
        self._connection = connection
        self._lock = threading.Lock()
        self._ended = False
        in_child(self, Lease._drop_in_child)

    def attach(
        self, request: offload_pb2.AttachRegionRequest, region: RegionSource
    ) -> offload_pb2.AttachRegionResponse:
        """Send the region and wait for the daemon's answer, however long it takes.

        Raises AttachRefusedError, DaemonUnreachableError (it hung up) or ProtocolError.
        """
        body = request.SerializeToString()
        frame = _HEADER.pack(len(body)) + body
        descriptors = [segment.descriptor for segment in region.segments]
        self._connection.settimeout(REMIND_SECONDS)
        try:
            sent = socket.send_fds(self._connection, [frame], descriptors)
            self._connection.sendall(frame[sent:])
            reply = lease_pb2.LeaseReply.FromString(self._receive_frame())
        except OSError as error:
            raise DaemonUnreachableError(f"the lease broke during the attach: {error}") from error
        except DecodeError as error:
            raise ProtocolError(f"the daemon's answer isn't a LeaseReply: {error}") from error
        self._connection.settimeout(None)
        if reply.WhichOneof("result") == "attached":
            return reply.attached
        if reply.WhichOneof("result") == "error":
            raise AttachRefusedError(reply.error.code, reply.error.reason, reply.error.message)
        raise ProtocolError("the daemon's answer on the lease is empty")

    def wait_for_end(self) -> None:
        """Return when the daemon's end-of-file arrives, and at no other time."""
        while True:
            try:
                if not self._connection.recv(4096):
                    break
            except ConnectionResetError:
                break  # The peer's end was closed with bytes of ours unread: closed all the same.
        self._finish()

    def half_close(self) -> None:
        """Tell the daemon that the engine is done. Safe to repeat."""
        with self._lock, contextlib.suppress(OSError):
            if not self._ended:
                self._connection.shutdown(socket.SHUT_WR)

    def abandon(self) -> None:
        """Close a lease that never carried a session; not allowed once attached."""
        self._finish()

    def _drop_in_child(self) -> None:
        """Close a forked child's copy of the descriptor, leaving the connection alone."""
        self._lock = threading.Lock()
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._ended = True
            self._connection.close()

    def _receive_frame(self) -> bytes:
        (length,) = _HEADER.unpack(self._receive_exactly(_HEADER.size))
        if not 1 <= length <= MAX_FRAME_BYTES:
            raise ProtocolError(f"the daemon sent a lease frame of {length} bytes")
        return self._receive_exactly(length)

    def _receive_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._connection.recv(count - len(parts))
            except TimeoutError:
                logger.warning("the kvferry daemon hasn't answered the attach yet, waiting")
                continue
            if not part:
                raise DaemonUnreachableError("the daemon closed the lease before it answered")
            parts += part
        return bytes(parts)


def connect(socket_dir: str) -> Lease:
    """Connect to the lease socket in `socket_dir`. Raises DaemonUnreachableError."""
    path = Path(socket_dir) / LEASE_SOCKET
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(CONNECT_TIMEOUT_SECONDS)
        connection.connect(str(path))
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise DaemonUnreachableError(f"cannot connect to {path}: {error}") from error
    return Lease(connection)
