"""Bytes that are no message, attach replies that are none, faults of Drain: the engine goes on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvferry.v1 import offload_pb2
from tests.client.scripted import ScriptedDaemon

from .conftest import Engine
from .test_every_answer import CODES, job, key, use_all_methods

pytestmark = pytest.mark.vllm
MakeEngine = Callable[..., Engine]
METHODS = ("Lookup", "Store", "Load", "Poll", "Drain")
TIMES = 2
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
CUT_SHORT = ("nothing", "half a header", "half a frame")
"""Hanging up is what is wrong with these; after the others the connection stays open."""


def serve_garbage(daemon: ScriptedDaemon, method: str) -> list[int]:
    """Answer the first calls of a method with bytes that are no message; return what is left."""
    left = [TIMES]

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
    return left


def goes_on(daemon: ScriptedDaemon, engine: Engine) -> None:
    """Check that the session is the first one still, and stores and loads."""
    assert engine.tier._client.counters["sessions_attached"] == 1
    use_all_methods(engine)
    engine.store([key(7)], engine.request("r7"), 7)
    engine.settle()
    assert key(7) in daemon.objects
    assert engine.lookup(key(7), engine.request("r8")) == "HIT"


@pytest.mark.parametrize("method", ["Lookup", "Poll"])
def test_J01_undecodable_bytes_lose_no_job(
    daemon: ScriptedDaemon, make_engine: MakeEngine, method: str
) -> None:
    engine = make_engine()
    left = serve_garbage(daemon, method)
    while left[0]:
        use_all_methods(engine)
    assert engine.tier._client.counters["lookups_expired"] == 0, "known at once, not by its age"
    goes_on(daemon, engine)


@pytest.mark.parametrize("method", ["Store", "Load"])
def test_J01_what_got_an_undecodable_answer_is_sent_again_unchanged(
    daemon: ScriptedDaemon, make_engine: MakeEngine, method: str
) -> None:
    engine = make_engine()
    left = serve_garbage(daemon, method)
    daemon.holding = True
    submit = engine.tier.submit_store if method == "Store" else engine.tier.submit_load
    submit(job(1))
    engine.step_until(lambda: len(daemon.requests(method)) > TIMES)
    assert not left[0]
    first, *others = daemon.requests(method)
    assert all(other == first for other in others)
    daemon.release()
    seen: list[int] = []

    def ended() -> bool:
        seen.extend(result.job_id for result in engine.tier.get_finished_jobs())
        return bool(seen)

    engine.step_until(ended)
    assert seen == [1]
    goes_on(daemon, engine)


def test_J01_undecodable_answers_of_drain_lose_no_job(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    left = serve_garbage(daemon, "Drain")
    daemon.holding = True
    engine.store([key(n) for n in range(3)], engine.request("r"), 1)
    engine.step_until(lambda: daemon.sessions[0].held)
    engine.forget()
    assert not engine.manager._jobs
    assert left[0] < TIMES
    daemon.release()
    goes_on(daemon, engine)


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
            if name in CUT_SHORT:
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
        assert engine.tier._client.counters["sessions_attached"] == 1
        engine.store([key(1)], engine.request("r1"), 1)
        engine.settle()
        assert key(1) in daemon.objects
    finally:
        daemon.die()
