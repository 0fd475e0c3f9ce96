"""OffloadService on a real daemon: authorisation, bad input, bounds, waits."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from kvferry.v1 import offload_pb2, types_pb2
from kvferry_server.core.types import EngineSettings

from .fakes import MemoryStore
from .harness import GUARD_SECONDS, Client, World, duration, running, wait_for

KEY = b"k" * 32 + b"\0\0\0\0"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
METHODS = {
    "DetachRegion": offload_pb2.DetachRegionRequest,
    "Lookup": offload_pb2.LookupRequest,
    "Store": offload_pb2.StoreRequest,
    "Load": offload_pb2.LoadRequest,
    "Poll": offload_pb2.PollRequest,
    "Drain": offload_pb2.DrainRequest,
}


def call(client: Client, method: str, **fields):
    request = METHODS[method](session=client.ref, **fields)
    return getattr(client.stub, method)(request, timeout=GUARD_SECONDS)


def refusal(client: Client, method: str, **fields):
    """Code, field and ErrorInfo of a refused call."""
    with pytest.raises(grpc.RpcError) as caught:
        call(client, method, **fields)
    status = rpc_status.from_call(caught.value)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "kvferry"
    assert info.reason == info.reason.upper()
    assert status.message == caught.value.details()
    return caught.value.code(), info.metadata["field"], info


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


def test_polls_without_a_deadline_and_waits_longer_than_the_callers_deadline(socket_dir: Path):
    with running(socket_dir, EngineSettings(max_wait_seconds=0.3)) as world:
        client = world.attach()
        request = offload_pb2.PollRequest(session=client.ref, max_wait=duration(1000))
        assert list(client.stub.Poll(request).results) == []
    with running(socket_dir.with_name("t")) as world:
        client = world.attach()
        request = offload_pb2.PollRequest(session=client.ref, max_wait=duration(20))
        assert list(client.stub.Poll(request, timeout=1).results) == []


def test_a_newer_poll_supersedes_an_older(world: World):
    client = world.attach()
    first = client.stub.Poll.future(
        offload_pb2.PollRequest(session=client.ref, max_wait=duration(25)), timeout=GUARD_SECONDS
    )
    wait_for(first.running)
    time.sleep(0.2)
    second = client.stub.Poll.future(
        offload_pb2.PollRequest(session=client.ref, max_wait=duration(25)), timeout=GUARD_SECONDS
    )
    assert first.result(GUARD_SECONDS).superseded
    client.store(1, [KEY], [0])
    assert [each.job_id for each in second.result(GUARD_SECONDS).results] == [1]


def test_a_cancelled_poll_and_lookup_leave_nothing_behind(world: World):
    client = world.attach()
    world.store.hold_probes = True
    poll = client.stub.Poll.future(
        offload_pb2.PollRequest(session=client.ref, max_wait=duration(25))
    )
    lookup = client.stub.Lookup.future(
        offload_pb2.LookupRequest(
            session=client.ref,
            groups=[offload_pb2.LookupGroup(keys=[KEY])],
            timeout=duration(30),
        )
    )
    wait_for(lambda: world.store.held)
    engine, runner = world.daemon._runner.engine, world.daemon._runner
    wait_for(lambda: len(runner._questions) == 2)
    poll.cancel()
    lookup.cancel()
    wait_for(lambda: not runner._questions)
    wait_for(lambda: engine.open_lookups == 0)


def test_G17_jobs_and_results_are_scoped_by_session(world: World):
    one, other = world.attach(), world.attach()
    one.region.fill(0, 1)
    other.region.fill(0, 2)
    one.store(1, [b"one one one"], [0])
    other.store(1, [b"other other"], [0])
    assert [r.job_id for r in one.poll()] == [1]
    assert [r.job_id for r in other.poll()] == [1]
    assert one.poll(0.05) == other.poll(0.05) == []
    assert len(world.store.objects) == 2


def test_drain_cancels_the_queue_and_waits(world: World):
    client = world.attach(region=None)
    world.store.hold = True
    client.store(1, [bytes([n]) * 8 for n in range(8)], range(8))
    wait_for(lambda: len(world.store.held) == 6)
    assert call(client, "Drain", max_wait=duration(0.2)).running_jobs == 1
    world.store.release()
    assert call(client, "Drain", max_wait=duration(20)).running_jobs == 0
    assert client.outcomes(1).count(types_pb2.CHUNK_OUTCOME_CANCELLED) == 2


def test_M09_detach_returns_when_nothing_touches_the_region_or_with_a_timeout(world: World):
    client = world.attach()
    data = client.region.fill(0, 5)
    client.store(1, [KEY], [0])
    client.outcomes(1)
    world.store.hold = True
    client.load(2, [KEY], [1])
    wait_for(lambda: world.store.held)
    assert refusal(client, "DetachRegion", max_wait=duration(0.1))[0] is (
        grpc.StatusCode.DEADLINE_EXCEEDED
    )
    assert not client.at_end_of_file()
    threading.Timer(0.3, world.store.release).start()
    client.detach()
    assert client.region.read(1) == data
    client.region.fill(1, 6)
    time.sleep(0.1)
    assert client.region.read(1) == b"\x06" * 4096
    assert client.at_end_of_file(GUARD_SECONDS)
    assert refusal(client, "DetachRegion")[0] is grpc.StatusCode.NOT_FOUND


def test_G04_the_authority_is_the_clients_and_any_is_served(world: World):
    for options in ({}, {"grpc.default_authority": "kvferry.example"}):
        stub = health_pb2_grpc.HealthStub(world.channel(**options))
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=GUARD_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    bare = grpc.insecure_channel(f"unix:{world.path('kvferry.sock')}")
    answer = health_pb2_grpc.HealthStub(bare).Check(
        health_pb2.HealthCheckRequest(), timeout=GUARD_SECONDS
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    bare.close()


def test_G06_pings_as_often_as_the_setting_allows_are_no_abuse(socket_dir: Path):
    with running(socket_dir, min_ping_seconds=0.05) as world:
        channel = world.channel(
            **{
                "grpc.keepalive_time_ms": 1_000,
                "grpc.keepalive_timeout_ms": 20_000,
                "grpc.keepalive_permit_without_calls": 1,
                "grpc.http2.max_pings_without_data": 0,
            }
        )
        changes: list[grpc.ChannelConnectivity] = []
        channel.subscribe(changes.append)
        client = world.attach()
        client.stub = type(client.stub)(channel)
        assert client.poll(7.0) == []
        time.sleep(7.0)
        assert client.poll(0.05) == []
        assert changes[-1] is grpc.ChannelConnectivity.READY
        assert changes.count(grpc.ChannelConnectivity.READY) == 1


def test_G07_a_lookup_above_4_mib_is_served_and_above_the_limit_refused(socket_dir: Path):
    settings = EngineSettings(max_keys_per_request=70_000, probe_batch=1000)
    with running(socket_dir, settings, max_message_bytes=8 << 20) as world:
        client = world.attach()
        keys = [n.to_bytes(64, "big") for n in range(70_000)]
        client.store(1, [keys[0]], [0])
        client.outcomes(1)
        request = offload_pb2.LookupRequest(
            session=client.ref,
            groups=[offload_pb2.LookupGroup(keys=keys, prefix_ordered=True)],
            timeout=duration(30),
        )
        assert request.ByteSize() > 4 << 20
        verdicts = client.stub.Lookup(request, timeout=GUARD_SECONDS).groups[0].verdicts
        assert list(verdicts[:3]) == [
            types_pb2.PRESENCE_PRESENT,
            types_pb2.PRESENCE_ABSENT,
            types_pb2.PRESENCE_UNKNOWN,
        ]
        request.groups[0].keys.extend([b"x" * 100] * 50_000)
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.Lookup(request, timeout=GUARD_SECONDS)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        client.lookup([KEY])


def test_G11_health_and_lookups_answer_while_every_transfer_is_busy(world: World):
    client = world.attach()
    client.store(1, [KEY], [0])
    client.outcomes(1)
    world.store.hold = True
    client.store(2, [bytes([n]) * 8 for n in range(8)], range(8))
    wait_for(lambda: len(world.store.held) == 6)
    health = health_pb2_grpc.HealthStub(world.channel())
    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert client.lookup([KEY, b"absent key"]) == [
        types_pb2.PRESENCE_PRESENT,
        types_pb2.PRESENCE_ABSENT,
    ]


def test_G12_the_bound_on_calls_holds_wave_after_wave(socket_dir: Path):
    with running(socket_dir, max_concurrent_rpcs=1) as world:
        client, other = world.attach(), world.attach()
        for wave in range(1, 4):
            world.store.hold_probes = True
            _one_wave(world, client, other, wave)


def _one_wave(world: World, client: Client, other: Client, wave: int) -> None:
    """Three lookups at once: one gets into its handler, two are refused with the limit.

    Calls of other kinds have bounds of their own.
    """
    calls = [
        client.stub.Lookup.future(
            offload_pb2.LookupRequest(
                session=client.ref,
                groups=[offload_pb2.LookupGroup(keys=[b"wave %d %d" % (wave, n)])],
                timeout=duration(30),
            ),
            timeout=GUARD_SECONDS,
        )
        for n in range(3)
    ]
    wait_for(lambda: sum(call.done() for call in calls) == 2)
    assert world.daemon._runner.engine.open_lookups == 1
    other.store(wave, [b"other key"], [0])
    other.outcomes(wave)
    world.store.release()
    codes = sorted(call.code().name for call in calls)
    assert codes == ["OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
    assert "max_concurrent_rpcs 1" in next(call.details() for call in calls if call.details())


def test_results_that_do_not_fit_one_message_come_with_the_next_poll(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kvferry_server.service.codec.POLL_BYTES", 100)
    client = world.attach()
    for number in range(1, 4):
        client.store(number, [bytes([number]) * 8], [number])
    wait_for(lambda: len(world.store.objects) == 3)
    time.sleep(0.1)
    assert [[r.job_id for r in client.poll()] for _ in range(3)] == [[1], [2], [3]]


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


def test_a_store_that_is_down_at_start_is_degraded_service_and_heals(socket_dir: Path):
    store = MemoryStore()
    store.problem = "bucket: there is no bucket 'absent'"
    with running(socket_dir, store=store) as world:
        client = world.attach()
        assert client.lookup([KEY]) == [types_pb2.PRESENCE_UNKNOWN]
        client.store(1, [KEY], [0])
        assert client.outcomes(1) == [types_pb2.CHUNK_OUTCOME_SHED]
        wait_for(lambda: world.daemon.server_info(GUARD_SECONDS).store.problem == store.problem)
        store.problem = ""
        world.ready()
        assert client.lookup([KEY]) == [types_pb2.PRESENCE_ABSENT]
        client.store(2, [KEY], [0])
        assert client.outcomes(2) == [types_pb2.CHUNK_OUTCOME_STORED]
        assert world.daemon.server_info(GUARD_SECONDS).store.problem == ""
