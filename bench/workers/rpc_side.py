"""One thread that calls: a warm lookup of 64 keys, or an echo with messages of the same lengths."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable

import grpc

from kvferry.v1 import offload_pb2, offload_pb2_grpc, types_pb2
from kvferry_client.client import Client
from kvferry_client.demo import make_region

from .echo_server import METHOD
from .protocol import serve

KEYS = 64
_CHUNK_BYTES = 4096
_SECONDS = 30.0
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))


class RpcSide:
    """A session with 64 stored chunks, and a channel that asks for them.

    Args:
        socket_dir: of the daemon.
    """

    def __init__(self, socket_dir: str) -> None:
        region = memoryview(make_region(KEYS * _CHUNK_BYTES)).cast("B", shape=[KEYS, _CHUNK_BYTES])
        self._client = Client(
            socket_dir,
            region,
            namespace=f"bench-{secrets.token_hex(8)}",
            engine_id=f"bench-{os.getpid()}",
        )
        if not self._client.wait_attached(_SECONDS):
            raise RuntimeError(self._client.last_error)
        keys = [secrets.token_bytes(32) + bytes(4) for _ in range(KEYS)]
        self._client.store(keys, range(KEYS))
        self._client.wait_results(_SECONDS)
        session = self._client._shared.session
        if session is None:
            raise RuntimeError("the session ended")
        self._request = offload_pb2.LookupRequest(
            session=session.ref,
            groups=[offload_pb2.LookupGroup(keys=keys, prefix_ordered=True)],
        )
        self._channel = grpc.insecure_channel(f"unix:{socket_dir}/kvferry.sock", _OPTIONS)
        self._lookup = offload_pb2_grpc.OffloadServiceStub(self._channel).Lookup
        reply = self._lookup(self._request)
        if set(reply.groups[0].verdicts) != {types_pb2.PRESENCE_PRESENT}:
            raise RuntimeError("a stored chunk was not found")
        self._reply_bytes = reply.ByteSize()

    def reply_bytes(self) -> int:
        """Length of the daemon's answer."""
        return self._reply_bytes

    def connect(self, echo: str) -> None:
        """Open the channel to the echo server."""
        self._echo_channel = grpc.insecure_channel(f"unix:{echo}", _OPTIONS)
        self._echo = self._echo_channel.unary_unary(METHOD)

    def lookups(self, calls: int) -> list[float]:
        """Seconds of each of so many lookups."""
        return _times(lambda: self._lookup(self._request), calls)

    def echoes(self, calls: int) -> list[float]:
        """Seconds of each of so many echoes."""
        message = self._request.SerializeToString()
        return _times(lambda: self._echo(message), calls)

    def close(self) -> None:
        """End the session."""
        self._channel.close()
        self._client.close()


def _times(call: Callable[[], object], calls: int) -> list[float]:
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


if __name__ == "__main__":
    serve(RpcSide)
