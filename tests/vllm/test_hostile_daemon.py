"""Bytes that are no message, attach replies that are none, faults of Drain: the engine goes on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from vllm.v1.kv_offload.base import make_offload_key

from kvferry.v1 import offload_pb2
from tests.client.scripted import ScriptedDaemon

from .conftest import Engine
from .test_every_answer import CODES, use_all_methods

pytestmark = pytest.mark.vllm
MakeEngine = Callable[..., Engine]
METHODS = ("Lookup", "Store", "Load", "Poll", "Drain")
GARBAGE = b"\xff\xff\xff\xff no message"
ATTACH_REPLIES: dict[str, bytes] = {
    "nothing": b"",
    "half a header": b"\0\0",
    "length zero": struct.pack(">I", 0),
    "huge length": struct.pack(">I", 1 << 31),
    "half a frame": struct.pack(">I", 100) + b"x" * 10,
    "no message": struct.pack(">I", len(GARBAGE)) + GARBAGE,
    "unknown field only": struct.pack(">I", 2) + b"\x38\x00",
}


def key(number: int) -> bytes:
    return make_offload_key(number.to_bytes(32, "big"), 0)


def serve_garbage(daemon: ScriptedDaemon, method: str, times: int) -> None:
    """Answer the first calls of a method with bytes that are no message."""
    left = [times]

    def serializer(name: str) -> Callable[[Any], bytes]:
        def serialize(reply: Any) -> bytes:
            if name == method and left[0]:
                left[0] -= 1
                return GARBAGE
            data: bytes = reply.SerializeToString()
            return data

        return serialize

    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(daemon, name),
            request_deserializer=getattr(offload_pb2, f"{name}Request").FromString,
            response_serializer=serializer(name),
        )
        for name in METHODS
    }
    daemon.stop_grpc()
    server = grpc.server(ThreadPoolExecutor(16))
    service = grpc.method_handlers_generic_handler("kvferry.v1.OffloadService", handlers)
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{daemon.directory / 'kvferry.sock'}")
    server.start()
    daemon._server = server


@pytest.mark.parametrize("method", METHODS)
def test_J01_undecodable_bytes_lose_no_job(
    daemon: ScriptedDaemon, make_engine: MakeEngine, method: str
) -> None:
    engine = make_engine()
    serve_garbage(daemon, method, times=2)
    use_all_methods(engine)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_J01_faults_of_drain_lose_no_job(
    daemon: ScriptedDaemon, make_engine: MakeEngine, code: grpc.StatusCode
) -> None:
    engine = make_engine()
    daemon.holding = True
    engine.store([key(n) for n in range(3)], engine.request("r"), 1)
    engine.step_until(lambda: daemon.sessions[0].held)
    daemon.fail("Drain", code, times=2)
    engine.forget()
    assert not engine.manager._jobs
    assert len(daemon.requests("Drain")) == 3
    assert not engine.tier._faults


@pytest.mark.parametrize("name", ATTACH_REPLIES)
def test_a_malformed_attach_reply_is_like_no_daemon(
    socket_dir: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    daemon = ScriptedDaemon(socket_dir)
    right = daemon._reply
    left = [2]

    def wrong(connection: Any, reply: Any) -> None:
        if left[0]:
            left[0] -= 1
            connection.sendall(ATTACH_REPLIES[name])
            connection.close()
            return
        right(connection, reply)

    monkeypatch.setattr(daemon, "_reply", wrong)
    daemon.start()
    try:
        engine = make_engine(wait=False)
        use_all_methods(engine)
        assert engine.tier._client.wait_attached(10)
        assert not left[0]
        engine.store([key(1)], engine.request("r1"), 1)
        engine.settle()
        assert key(1) in daemon.objects
    finally:
        daemon.die()
