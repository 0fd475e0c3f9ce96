"""AdminService, debug sessions and the store's preflight on a real daemon."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvferry.v1 import admin_pb2, offload_pb2, offload_pb2_grpc, types_pb2
from kvferry_server.core.ports import Preflight
from kvferry_server.service import store_check

from .fakes import MemoryStore
from .harness import GUARD_SECONDS, SLOT, World, attach_request, running, wait_for

KEY = b"k" * 32 + b"\0\0\0\0"


@pytest.fixture
def shm_name() -> Iterator[str]:
    path = Path("/dev/shm") / f"kvferry_test_{uuid.uuid4().hex}"
    path.write_bytes(bytes(8 * SLOT))
    yield path.name
    path.unlink()


def by_name(shm_name: str) -> offload_pb2.AttachRegionRequest:
    request = attach_request()
    request.segments[0].shm_name = shm_name
    return request


def info(world: World) -> admin_pb2.GetServerInfoResponse:
    request = admin_pb2.GetServerInfoRequest()
    return world.admin().GetServerInfo(request, timeout=GUARD_SECONDS)


def test_server_info_sessions_and_jobs(world: World):
    client = world.attach()
    world.store.hold = True
    context = types_pb2.RequestContext(request_id="request-7")
    job = offload_pb2.Job(
        job_id=1, keys=[bytes([n]) * 8 for n in range(8)], slots=range(8), context=context
    )
    client.stub.Store(offload_pb2.StoreRequest(session=client.ref, jobs=[job]))
    wait_for(lambda: len(world.store.held) == 6)
    found = info(world)
    assert (found.sessions, found.active_chunks, found.queued_store_chunks) == (1, 6, 2)
    assert found.store.url == "memory://"
    assert found.store.settings == "in memory"
    assert found.store.read_breaker == admin_pb2.BREAKER_STATE_CLOSED
    assert found.counters["sessions_opened"] == 1
    assert found.boot_id == world.daemon.boot_id
    sessions = world.admin().ListSessions(admin_pb2.ListSessionsRequest()).sessions
    assert [(s.session_id, s.engine_id, s.namespace, s.slots, s.open_jobs) for s in sessions] == [
        (client.ref.session_id, "engine", "model", 8, 1)
    ]
    assert sessions[0].region_bytes == 8 * SLOT
    jobs = world.admin().ListJobs(admin_pb2.ListJobsRequest()).jobs
    assert [(j.job_id, j.request_id, j.active_chunks, j.queued_chunks) for j in jobs] == [
        (1, "request-7", 6, 2)
    ]
    for request in (
        admin_pb2.ListJobsRequest(session_id="absent"),
        admin_pb2.ListJobsRequest(session_id=client.ref.session_id, limit=1),
    ):
        jobs = world.admin().ListJobs(request).jobs
        assert len(jobs) == (request.session_id != "absent")
    with pytest.raises(grpc.RpcError, match="10000"):
        world.admin().ListJobs(admin_pb2.ListJobsRequest(limit=10_001))


def test_no_reply_shows_a_token(world: World):
    client = world.attach()
    token = client.ref.token
    replies = [info(world), world.admin().ListSessions(admin_pb2.ListSessionsRequest())]
    for reply in replies:
        assert token not in reply.SerializeToString()
    assert token.hex() not in repr(list(world.daemon._sessions))
    assert repr(token) not in repr(list(world.daemon._sessions))


def test_pause_and_resume(world: World):
    client = world.attach()
    admin = world.admin()
    with pytest.raises(grpc.RpcError, match="stores, loads or both"):
        admin.Pause(admin_pb2.PauseRequest())
    answer = admin.Pause(admin_pb2.PauseRequest(stores=True))
    assert (answer.stores_paused, answer.loads_paused) == (True, False)
    client.store(1, [KEY], [0])
    assert client.outcomes(1) == [types_pb2.CHUNK_OUTCOME_SHED]
    assert admin.Pause(admin_pb2.PauseRequest(loads=True)).stores_paused
    assert client.lookup([KEY]) == [types_pb2.PRESENCE_UNKNOWN]
    after = admin.Resume(admin_pb2.ResumeRequest(stores=True, loads=True))
    assert (after.stores_paused, after.loads_paused) == (False, False)
    client.store(2, [KEY], [0])
    assert client.outcomes(2) == [types_pb2.CHUNK_OUTCOME_STORED]


def test_set_log_level(world: World):
    logger = logging.getLogger("kvferry_server")
    before = logger.level
    try:
        admin = world.admin()
        admin.SetLogLevel(admin_pb2.SetLogLevelRequest(level="debug"))
        assert logger.level == logging.DEBUG
        answer = admin.SetLogLevel(admin_pb2.SetLogLevelRequest(level="error"))
        assert answer.previous_level == "debug"
        with pytest.raises(grpc.RpcError, match="level must be one of"):
            admin.SetLogLevel(admin_pb2.SetLogLevelRequest(level="loud"))
    finally:
        logger.setLevel(before)


def test_check_store_runs_a_preflight_and_tells_what_is_wrong(
    world: World, caplog: pytest.LogCaptureFixture
):
    before = world.store.preflights
    world.store.problem = "credentials: the store refused them"
    for _ in range(2):
        answer = world.admin().CheckStore(admin_pb2.CheckStoreRequest(), timeout=GUARD_SECONDS)
        assert answer.store.ready
        assert answer.store.problem == world.store.problem
        assert [(s.name, s.passed) for s in answer.steps] == [("round trip", False)]
    assert world.store.preflights == before + 2
    assert caplog.text.count("credentials: the store refused them") == 1
    world.store.problem = ""
    answer = world.admin().CheckStore(admin_pb2.CheckStoreRequest(), timeout=GUARD_SECONDS)
    assert (answer.store.problem, answer.steps[0].passed) == ("", True)


def test_the_preflight_repeats_until_it_passes(socket_dir: Path, monkeypatch):
    monkeypatch.setattr("kvferry_server.service.store_check.FIRST_RETRY_SECONDS", 0.01)
    store = MemoryStore()
    store.problem = "bucket: absent"
    with running(socket_dir, store=store) as world:
        wait_for(lambda: store.preflights > 3)
        assert not info(world).store.ready
        store.problem = ""
        world.ready()
        count = store.preflights
        wait_for(lambda: info(world).store.ready)
        assert store.preflights == count


class BrokenStore(MemoryStore):
    """Its preflight fails in a way that no adapter should."""

    def preflight(self) -> Preflight:
        if self.preflights < 3:
            self.preflights += 1
            raise RuntimeError("a bug")
        return super().preflight()


def test_a_preflight_that_raises_is_repeated_too(socket_dir: Path, monkeypatch, caplog):
    monkeypatch.setattr("kvferry_server.service.store_check.FIRST_RETRY_SECONDS", 0.01)
    with running(socket_dir, store=BrokenStore()) as world:
        world.ready()
        wait_for(lambda: info(world).store.ready)
    assert caplog.text.count("the preflight failed unexpectedly") == 3


def test_debug_attach_by_name_checks_the_same(socket_dir: Path, shm_name: str):
    with running(socket_dir, debug_attach_by_name=True) as world:
        stub = offload_pb2_grpc.OffloadServiceStub(world.channel())
        stub.AttachRegion(by_name(shm_name), timeout=GUARD_SECONDS)
        for name, code in (
            (shm_name, grpc.StatusCode.FAILED_PRECONDITION),
            ("", grpc.StatusCode.INVALID_ARGUMENT),
            ("a/b", grpc.StatusCode.INVALID_ARGUMENT),
            ("kvferry_absent", grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.AttachRegion(by_name(name), timeout=GUARD_SECONDS)
            assert caught.value.code() is code, name
        assert "shared /dev/shm" in caught.value.details()


def test_debug_sessions_end_when_idle_and_leased_ones_do_not(socket_dir: Path, shm_name: str):
    settings = {"debug_idle_seconds": 0.5, "loop_beat_seconds": 0.05}
    with running(socket_dir, debug_attach_by_name=True, **settings) as world:
        leased = world.attach()
        stub = offload_pb2_grpc.OffloadServiceStub(world.channel())
        stub.AttachRegion(by_name(shm_name), timeout=GUARD_SECONDS)
        wait_for(lambda: info(world).sessions == 1)
        assert not leased.at_end_of_file(0.2)
        assert leased.poll(0.01) == []


def test_health_turns_to_not_serving_on_stop(socket_dir: Path):
    with running(socket_dir, result_seconds=GUARD_SECONDS) as world:
        client = world.attach()
        client.store(1, [KEY], [0])
        wait_for(lambda: world.store.objects)
        stub = health_pb2_grpc.HealthStub(world.channel())
        check = health_pb2.HealthCheckRequest()
        assert stub.Check(check).status == health_pb2.HealthCheckResponse.SERVING
        world.loop.call_soon_threadsafe(world.daemon.stop)
        wait_for(lambda: stub.Check(check).status == health_pb2.HealthCheckResponse.NOT_SERVING)
        client.outcomes(1)
        client.poll(0)


def test_a_preflight_that_does_not_end_is_told(socket_dir: Path, monkeypatch, caplog):
    monkeypatch.setattr(store_check, "SLOW_SECONDS", 0.1)
    store = MemoryStore()
    store.preflight_gate.clear()
    with running(socket_dir, store=store) as world:
        wait_for(lambda: "does not end" in info(world).store.problem)
        assert "memory://: the preflight does not end" in caplog.text
        store.preflight_gate.set()
        world.ready()
        assert info(world).store.problem == ""
