"""A TCP proxy on loopback that plays a bad network: cut, slow, or silent.

    with TcpProxy(server.port) as proxy:
        proxy.slow(bytes_per_second=200_000, delay_seconds=0.05)
        proxy.silent()         # packets get lost both ways, connections stay "established"
        proxy.cut()            # connections are reset, new ones refused
        proxy.fine()           # new connections work; what was silent stays silent

Owns its listener, one thread with an event loop, and the counters that prove that a fault happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE_BYTES = 16_384
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Counters:
    """What the proxy did since its start."""

    connections: int = 0
    reset: int = 0
    refused: int = 0
    swallowed_bytes: int = 0
    delayed_pieces: int = 0


class _Pair:
    """One connection and its counterpart."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers = writers
        self.silent = False

    def reset(self) -> None:
        """End both sides without a goodbye."""
        for writer in self.writers:
            raw = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()


class TcpProxy:
    """The proxy; a context manager. Its methods may be called from any thread."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.counters = Counters()
        self._target_port = target_port
        self._delay = 0.0
        self._rate = 0.0
        self._silent = False
        self._cut = False
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """The loop holds its tasks weakly: without this the collector ends connections."""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end)
        self._thread.join()

    def fine(self) -> None:
        """From now on new connections work at full speed; silent ones stay silent."""
        self._call(self._set)

    def slow(self, *, delay_seconds: float = 0.0, bytes_per_second: float = 0.0) -> None:
        """Each piece comes later, and each direction of a connection has a rate."""
        self._call(lambda: self._set(delay=delay_seconds, rate=bytes_per_second))

    def silent(self) -> None:
        """Nothing arrives any more, on present and on new connections; nothing is closed."""

        def change() -> None:
            self._set(silent=True)
            for pair in self._pairs:
                pair.silent = True

        self._call(change)

    def forget_peers(self) -> None:
        """Present connections become half-open: silent for ever, while new ones work."""

        def change() -> None:
            for pair in self._pairs:
                pair.silent = True

        self._call(change)

    def cut(self) -> None:
        """Reset all connections and each new one."""

        def change() -> None:
            self._set(cut=True)
            self.counters.reset += len(self._pairs)
            for pair in list(self._pairs):
                pair.reset()

        self._call(change)

    def reset_connections(self) -> None:
        """Reset all present connections; new ones work."""
        self.cut()
        self.fine()

    @property
    def open_connections(self) -> int:
        """Connections now."""
        return len(self._pairs)

    def _set(
        self, *, delay: float = 0.0, rate: float = 0.0, silent: bool = False, cut: bool = False
    ) -> None:
        self._delay, self._rate, self._silent, self._cut = delay, rate, silent, cut

    def _call(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._ending.wait()
        server.close()
        for pair in list(self._pairs):
            pair.reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        self._ending.set()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve_one(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters.connections += 1
        if self._cut:
            self.counters.refused += 1
            _Pair(writer).reset()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            _Pair(writer).reset()
            return
        pair = _Pair(writer, far_writer)
        pair.silent = self._silent
        self._pairs.add(pair)
        ways = ((reader, far_writer), (far_reader, writer))
        tasks = [asyncio.create_task(self._carry(pair, *way)) for way in ways]
        try:
            await asyncio.gather(*tasks)
        except (OSError, asyncio.CancelledError):  # cancelled at the proxy's own end only
            pass
        finally:
            for task in tasks:
                task.cancel()
            self._pairs.discard(pair)
            pair.reset()

    async def _carry(
        self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while piece := await reader.read(PIECE_BYTES):
            if pair.silent:
                self.counters.swallowed_bytes += len(piece)
                continue
            pause = self._delay + (len(piece) / self._rate if self._rate else 0.0)
            if pause:
                self.counters.delayed_pieces += 1
                await asyncio.sleep(pause)
            writer.write(piece)
            await writer.drain()
        if pair.silent:
            await asyncio.Event().wait()
        if writer.can_write_eof():
            writer.write_eof()
