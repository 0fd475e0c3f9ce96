"""lease.sock: takes a region's descriptors and tells both sides when the other is done.

Memory: received descriptors are close-on-exec and closed here; the mapper keeps its own.
Lifecycle: a connection is a pending handshake, then a lease. A lease's socket is closed by
`Lease.close`, which the session table calls once nothing touches the region any more.
Failure: end-of-file, a reset or any byte after the handshake mean that the engine is done.
Slow and garbled handshakes end by themselves and hold up nobody.
Threading: the event loop's thread only.
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from google.protobuf.message import DecodeError

from kvferry.v1 import lease_pb2, offload_pb2
from kvferry_server.core.errors import DeadlineExceeded, InvalidArgument, KvferryError

from .peers import PeerPolicy, read_peer
from .refusals import Refusals
from .sessions import SessionTable
from .settings import ServerSettings
from .status import code_of, cut

__all__ = ["Lease", "LeaseServer"]

_log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 65_536
MAX_DESCRIPTORS = 64
_LENGTH = struct.Struct(">I")
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_ACCEPT_RETRY_SECONDS = 0.2
_LINGER_SECONDS = 1.0


class Lease:
    """The daemon's end of an attached connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        """Call one of both once: the engine is done and waits for us, or it is gone."""

        def readable() -> None:
            try:
                self._connection.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                _log.debug("lease: %s", error)
            self._loop.remove_reader(self._connection)
            (on_loss if self._is_gone() else on_end)()

        self._loop.add_reader(self._connection, readable)

    def _is_gone(self) -> bool:
        """Whether the other end is closed, not just done with writing."""
        poll = select.poll()
        poll.register(self._connection, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))

    def close(self) -> None:
        """Show end-of-file to the client: nobody touches its memory."""
        self._loop.remove_reader(self._connection)
        self._connection.close()


class LeaseServer:
    """Accepts connections and attaches regions.

    Args:
        listener: a listening, non-blocking stream socket; closed by `stop_accepting`.
    """

    def __init__(
        self,
        listener: socket.socket,
        policy: PeerPolicy,
        sessions: SessionTable,
        settings: ServerSettings,
    ) -> None:
        self._listener = listener
        self._policy = policy
        self._sessions = sessions
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Task[None], None] = {}
        self._refusals = Refusals()
        self._stopped = False

    def start(self) -> None:
        """Accept from now on."""
        if not self._stopped:
            self._loop.add_reader(self._listener, self._accept)

    def stop_accepting(self) -> None:
        """Close the listener and end pending handshakes; leases stay. May be repeated."""
        self._stopped = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._pending:
            task.cancel()

    def _accept(self) -> None:
        try:
            connection, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("lease: can't accept, trying again soon: %s", error)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_ACCEPT_RETRY_SECONDS, self.start)
            return
        connection.settimeout(0)
        if len(self._pending) >= self._settings.max_pending_handshakes:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._handshake(connection))
        self._pending[task] = None

        def ended(done: asyncio.Task[None]) -> None:
            self._pending.pop(done, None)
            if done.cancelled():  # maybe before its first step, so that nothing else closes it
                connection.close()

        task.add_done_callback(ended)

    async def _handshake(self, connection: socket.socket) -> None:
        """Attach and hand the connection to its lease, or refuse and close it."""
        attached = False
        try:
            async with asyncio.timeout(self._settings.handshake_seconds):
                attached = await self._attach(connection)
        except TimeoutError:
            limit = f"handshake_seconds {self._settings.handshake_seconds:g}"
            late = DeadlineExceeded(f"no whole request within {limit}", reason="HANDSHAKE_TIMEOUT")
            await self._refuse(connection, late)
        except KvferryError as error:
            await self._refuse(connection, error)
        except OSError as error:
            _log.info("lease: a connection ended before it attached: %s", error)
        finally:
            if not attached:
                connection.close()

    async def _attach(self, connection: socket.socket) -> bool:
        """True if the connection is a lease now; False if the peer left without a word.

        Raises:
            KvferryError: the peer, its request or its region is refused.
            OSError: the connection broke.
        """
        peer = read_peer(connection)
        self._policy.check(peer)
        tenant = self._settings.tenants.of(peer)
        descriptors = array.array("i")
        try:
            frame = await self._read_frame(connection, descriptors)
            if frame is None:
                return False
            request = _parse(frame)
            lease = Lease(connection)
            session, response = self._sessions.attach(request, descriptors, lease, tenant)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        sessions = self._sessions
        try:
            _send(connection, lease_pb2.LeaseReply(attached=response))
        except OSError as error:
            _log.info("lease: the client left during its attach: %s", error)
            sessions.lease_lost(session)
        else:
            lease.watch(lambda: sessions.end(session), lambda: sessions.lease_lost(session))
        return True

    async def _read_frame(
        self, connection: socket.socket, descriptors: array.array[int]
    ) -> bytes | None:
        """One frame; its descriptors are appended, also when it is refused."""
        head = await self._read(connection, _LENGTH.size, descriptors)
        if not head:
            return None
        (length,) = _LENGTH.unpack(head)
        if not 1 <= length <= MAX_FRAME_BYTES:
            raise InvalidArgument(
                f"the frame's length must be 1 to {MAX_FRAME_BYTES}, is {length}",
                reason="BAD_FRAME",
            )
        first = len(descriptors)
        body = await self._read(connection, length, descriptors)
        if not body or len(descriptors) > first:
            raise InvalidArgument(
                "descriptors must travel with the frame's first byte, and the frame be whole",
                reason="BAD_FRAME",
            )
        return body

    async def _read(
        self, connection: socket.socket, size: int, descriptors: array.array[int]
    ) -> bytes:
        """Exactly `size` bytes, or none if the stream ended before."""
        data = b""
        while len(data) < size:
            try:
                piece, ancillary, flags, _address = connection.recvmsg(
                    size - len(data), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await self._readable(connection)
                continue
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    whole = len(payload) - len(payload) % descriptors.itemsize
                    descriptors.frombytes(payload[:whole])
            if flags & socket.MSG_CTRUNC or len(descriptors) > MAX_DESCRIPTORS:
                raise InvalidArgument(
                    f"at most {MAX_DESCRIPTORS} descriptors can be passed, and the daemon must "
                    "have as many free (RLIMIT_NOFILE)",
                    reason="DESCRIPTORS_TRUNCATED",
                )
            if not piece:
                return b""
            data += piece
        return data

    async def _refuse(self, connection: socket.socket, error: KvferryError) -> None:
        """Tell the peer why, and give it time to read that before the connection ends."""
        line = self._refusals.line(read_peer(connection).uid, error, self._loop.time())
        if line:
            _log.warning("lease: %s", line)
        number: int = code_of(error).value[0]
        text = cut(error.message)
        refusal = lease_pb2.AttachError(code=number, reason=error.reason, message=text)
        with suppress(OSError, TimeoutError):
            _send(connection, lease_pb2.LeaseReply(error=refusal))
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._readable(connection)
                while connection.recv(MAX_FRAME_BYTES):
                    await self._readable(connection)

    async def _readable(self, connection: socket.socket) -> None:
        event = asyncio.Event()
        self._loop.add_reader(connection, event.set)
        try:
            await event.wait()
        finally:
            self._loop.remove_reader(connection)


def _parse(frame: bytes) -> offload_pb2.AttachRegionRequest:
    try:
        request = offload_pb2.AttachRegionRequest.FromString(frame)
    except DecodeError as error:
        raise InvalidArgument("the frame is no AttachRegionRequest", reason="BAD_FRAME") from error
    for index, segment in enumerate(request.segments):
        if segment.shm_name:
            raise InvalidArgument(
                f"segments[{index}].shm_name must be empty on the lease: pass the descriptor",
                reason="NAME_ON_LEASE",
                field=f"segments[{index}].shm_name",
            )
    return request


def _send(connection: socket.socket, reply: lease_pb2.LeaseReply) -> None:
    """Send a frame, which fits the empty buffer of a new connection.

    Raises:
        OSError: the client left or its buffer is full.
    """
    payload = reply.SerializeToString()
    data = _LENGTH.pack(len(payload)) + payload
    if connection.send(data, socket.MSG_NOSIGNAL) != len(data):
        raise BlockingIOError("the reply did not fit the socket's buffer")
