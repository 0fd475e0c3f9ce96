"""OffloadService on a real daemon: waits, scopes, bounds."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvferry.v1 import offload_pb2, types_pb2
from kvferry_server.core.types import EngineSettings

from .calls import KEY, call, refusal
from .fakes import MemoryStore
from .harness import GUARD_SECONDS, Client, World, duration, running, wait_for


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
