"""What wrong, hostile and unauthorised calls get: a clear status, and nothing starts."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import offload_pb2, types_pb2
from kvferry_server.core.errors import FailedPrecondition
from kvferry_server.core.types import EngineSettings

from .calls import INVALID, KEY, METHODS, refusal
from .harness import GUARD_SECONDS, World, duration, running


@pytest.mark.parametrize("method", METHODS)
def test_every_call_needs_the_session_and_its_token(world: World, method: str):
    client = world.attach()
    right = client.ref
    for session_id, token, expected in (
        ("0" * 32, right.token, grpc.StatusCode.NOT_FOUND),
        ("", b"", grpc.StatusCode.NOT_FOUND),
        (right.session_id, b"", grpc.StatusCode.UNAUTHENTICATED),
        (right.session_id, b"x" * 32, grpc.StatusCode.UNAUTHENTICATED),
        (right.session_id, right.token[:-1], grpc.StatusCode.UNAUTHENTICATED),
    ):
        client.ref = types_pb2.SessionRef(session_id=session_id, token=token)
        assert refusal(client, method)[0] is expected
    client.ref = right
    assert not client.at_end_of_file()


def job(**changes) -> offload_pb2.Job:
    return offload_pb2.Job(**{"job_id": 1, "keys": [KEY], "slots": [0], **changes})


def context(**changes) -> types_pb2.RequestContext:
    return types_pb2.RequestContext(**changes)


BAD_JOBS = [
    ([], "jobs"),
    ([job(job_id=0)], "jobs[0].job_id"),
    ([job(keys=[], slots=[])], "jobs[0].keys"),
    ([job(keys=[b""])], "jobs[0].keys[0]"),
    ([job(keys=[b"1234"])], "jobs[0].keys[0]"),
    ([job(keys=[b"x" * 129])], "jobs[0].keys[0]"),
    ([job(slots=[8])], "jobs[0].slots[0]"),
    ([job(slots=[0, 1])], "jobs[0].slots"),
    ([job(keys=[KEY, KEY + b"2"], slots=[3, 3])], "jobs[0].slots"),
    ([job(keys=[KEY, KEY], slots=[3, 4])], "jobs[0].keys"),
    ([job(), job(job_id=2, slots=[9])], "jobs[1].slots[0]"),
    ([job(), job()], "jobs.job_id"),
    ([job(keys=[bytes([n]) * 8 for n in range(5)], slots=range(5))], "jobs.keys"),
    ([job(job_id=n, keys=[bytes([n]) * 8], slots=[n]) for n in range(1, 5)], "jobs"),
    ([job(context=context(request_id="r" * 257))], "jobs[0].context.request_id"),
    ([job(context=context(transfer_params={"k" * 65: ""}))], "jobs[0].context.transfer_params"),
    ([job(context=context(transfer_params={"k": "v" * 257}))], "jobs[0].context.transfer_params"),
    (
        [job(context=context(transfer_params={str(n): "" for n in range(17)}))],
        "jobs[0].context.transfer_params",
    ),
]
TIGHT = EngineSettings(max_keys_per_request=4, max_jobs_per_request=3)


@pytest.mark.parametrize("method", ["Store", "Load"])
@pytest.mark.parametrize(("jobs", "field"), BAD_JOBS)
def test_bad_jobs_name_the_field_and_nothing_starts(socket_dir: Path, method: str, jobs, field):
    with running(socket_dir, TIGHT) as world:
        client = world.attach()
        assert refusal(client, method, jobs=jobs)[:2] == (INVALID, field)
        assert world.store.transfers == 0
        assert client.store(1, [KEY], [0]) == offload_pb2.JOB_ADMISSION_ACCEPTED


def test_more_bytes_than_the_cap(socket_dir: Path):
    with running(socket_dir, EngineSettings(max_bytes_per_request=4096)) as world:
        client = world.attach()
        code, _field, info = refusal(
            client, "Store", jobs=[job(keys=[KEY, KEY + b"2"], slots=[0, 1])]
        )
        assert (code, info.reason) == (INVALID, "REQUEST_TOO_LARGE")


def test_too_many_open_jobs_is_resource_exhausted_with_the_limit(socket_dir: Path):
    with running(socket_dir, EngineSettings(max_open_jobs=1)) as world:
        client = world.attach()
        client.store(1, [KEY], [0])
        with pytest.raises(grpc.RpcError, match="max_open_jobs is 1") as caught:
            client.store(2, [KEY], [0])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        ("Lookup", {"groups": [offload_pb2.LookupGroup(keys=[b""])]}, "groups[0].keys[0]"),
        ("Lookup", {"groups": [offload_pb2.LookupGroup(keys=[KEY] * 5)]}, "groups.keys"),
        ("Lookup", {"timeout": duration(0)}, "timeout"),
        ("Lookup", {"timeout": duration(60.5)}, "timeout"),
        ("Lookup", {"timeout": duration(-1)}, "timeout"),
        ("Poll", {"max_wait": duration(-1)}, "max_wait"),
        ("Poll", {"ack_seq": 1}, "ack_seq"),
        ("Drain", {"max_wait": duration(-0.5)}, "max_wait"),
        ("DetachRegion", {"max_wait": duration(-0.5)}, "max_wait"),
    ],
)
def test_bad_calls_name_the_field(socket_dir: Path, method: str, fields, field: str):
    with running(socket_dir, TIGHT) as world:
        assert refusal(world.attach(), method, **fields)[:2] == (INVALID, field)


def test_a_duration_out_of_range_is_refused(world: World):
    wait = duration(1)
    wait.nanos = 2_000_000_000
    assert refusal(world.attach(), "Poll", max_wait=wait)[:2] == (INVALID, "max_wait")


def test_attach_by_name_is_off_by_default(world: World):
    client = world.attach()
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.AttachRegion(offload_pb2.AttachRegionRequest(), timeout=GUARD_SECONDS)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "--debug-attach-by-name" in caught.value.details()


@pytest.mark.parametrize("data", [b"\xff" * 40, b"\x0a\x05ab", b"\x0a\x04\x0a\x02\xff\xff"])
@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_parse_is_invalid(world: World, method: str, data: bytes):
    raw = world.channel().unary_unary(f"/kvferry.v1.OffloadService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        raw(data, timeout=GUARD_SECONDS)
    assert caught.value.code() is INVALID


def test_bytes_that_are_no_http2_disturb_nobody(world: World):
    client = world.attach()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), preface + b"\xff" * 100):
        for name in ("kvferry.sock", "admin.sock"):
            with world.connect(name) as connection, contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
    client.store(1, [KEY], [0])
    assert client.outcomes(1) == [types_pb2.CHUNK_OUTCOME_STORED]


def test_an_unknown_method_is_unimplemented(world: World):
    method = world.channel().unary_unary("/kvferry.v1.OffloadService/Absent")
    with pytest.raises(grpc.RpcError) as caught:
        method(b"", timeout=GUARD_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_fault_in_a_handler_is_internal_without_its_text(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    client = world.attach()

    def broken(*_args: object) -> None:
        raise RuntimeError("a secret text")

    monkeypatch.setattr(world.daemon._runner, "submit", broken)
    with pytest.raises(grpc.RpcError) as caught:
        client.store(1, [KEY], [0])
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "a secret text" in caplog.text
    monkeypatch.undo()
    client.store(1, [KEY], [0])


@pytest.mark.parametrize("text", ["x" * 20_000, "é\n%" * 20_000])
def test_G08_a_long_text_is_cut_and_the_code_arrives(
    world: World, monkeypatch: pytest.MonkeyPatch, text: str
):
    client = world.attach()

    def refuse(*_args: object) -> None:
        raise FailedPrecondition(text, reason="LONG", field=text)

    monkeypatch.setattr(world.daemon._runner, "submit", refuse)
    code, field, info = refusal(client, "Store", jobs=[job()])
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert info.reason == "LONG"
    assert field.endswith(" ...")
