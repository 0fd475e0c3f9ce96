"""A bare gRPC server on a Unix socket that answers any call with so many bytes."""

from __future__ import annotations

import asyncio
import threading

import grpc
import grpc.aio

from .protocol import serve

METHOD = "/bench.Echo/Echo"


class EchoServer:
    """Serves in a thread of its own, as `kvferry serve` does on its main one: grpc.aio.

    Args:
        socket: path of the Unix socket.
        reply_bytes: length of each answer.
    """

    def __init__(self, socket: str, reply_bytes: int) -> None:
        self._reply = bytes(reply_bytes)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(socket), self._loop).result(10)

    def ready(self) -> bool:
        """The server listens."""
        return True

    def close(self) -> None:
        """The process ends."""

    async def _start(self, socket: str) -> None:
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self._echo)
        service = grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()

    async def _echo(self, _request: bytes, _context: object) -> bytes:
        return self._reply


if __name__ == "__main__":
    serve(EchoServer)
