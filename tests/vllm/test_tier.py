"""The tier behind vLLM's own manager, against a scripted daemon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import JobResult
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from kvferry_client import vllm_tier
from tests.client.conftest import eventually
from tests.client.scripted import ScriptedDaemon

from .conftest import Engine, log_lines

pytestmark = pytest.mark.vllm
MakeEngine = Callable[..., Engine]
needs_positions = pytest.mark.skipif(
    not hasattr(ReqContext, "set_offload_key_position"),
    reason="this vLLM does not tell where in its request a chunk is",
)
needs_seed = pytest.mark.skipif(
    not hasattr(kv_cache_utils, "_NONE_HASH_SEED"),
    reason="this vLLM's block hashes are random unless PYTHONHASHSEED is set",
)


def key(number: int, group: int = 0) -> bytes:
    return make_offload_key(number.to_bytes(32, "big"), group)


def test_J13_round_trip(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    engine = make_engine()
    keys = [key(n) for n in range(4)]
    first = engine.request("r1")
    engine.store(keys, first, 7)
    engine.settle()
    assert set(daemon.objects) == set(keys)
    engine.manager.on_request_finished(first)
    engine.forget()
    second = engine.request("r2")
    assert [engine.lookup(k, second) for k in keys] == ["HIT"] * 4
    spec = engine.manager.prepare_load(keys, second)
    for slot in engine.slots(spec):
        assert (engine.rows[slot] == 7).all()
    engine.manager.complete_load(keys, second)
    assert engine.lookup(key(99), second) == "MISS"


@needs_positions
def test_all_keys_of_a_step_travel_together(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    context = engine.request("r1")
    for number in range(50):
        context.set_offload_key_position(key(number), 16 * (number + 1))
        assert engine.manager.lookup(key(number), context) is LookupResult.RETRY
    assert not daemon.requests("Lookup")
    engine.step()
    eventually(lambda: daemon.requests("Lookup"))
    (request,) = daemon.requests("Lookup")
    (group,) = request.groups
    assert list(group.keys) == [key(n) for n in range(50)]
    assert group.prefix_ordered
    assert group.context.request_id == "r1"


@needs_positions
def test_window_groups_are_not_prefix_ordered(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    context = engine.request("r1")
    for number in reversed(range(5)):
        context.set_offload_key_position(key(number, 1), 16 * (number + 1))
        engine.manager.lookup(key(number, 1), context)
    engine.step()
    engine.step_until(lambda: daemon.requests("Lookup"))
    assert not daemon.requests("Lookup")[0].groups[0].prefix_ordered


def test_L01_failed_load_is_a_miss_without_another_load(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    daemon.objects[key(1)] = bytes(engine.chunk_bytes)
    context = engine.request("r1")
    assert engine.manager.lookup(key(1), context) is LookupResult.RETRY
    engine.step()
    engine.step_until(lambda: engine.tier._client._shared.lookups.has_replies)
    del daemon.objects[key(1)]
    assert engine.lookup(key(1), context) == "MISS"
    engine.settle()
    for _ in range(3):
        assert engine.manager.lookup(key(1), context) is LookupResult.MISS
        engine.step()
    assert len(daemon.requests("Load")) == 1


def test_J08_partial_load_keeps_the_good_keys(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    size = engine.chunk_bytes
    keys = [key(n) for n in range(4)]
    daemon.objects = {k: bytes([n]) * size for n, k in enumerate(keys)}
    context = engine.request("r1")
    for k in keys:
        engine.manager.lookup(k, context)
    engine.step()
    engine.step_until(lambda: engine.tier._client._shared.lookups.has_replies)
    del daemon.objects[keys[2]]
    pending = [engine.manager.lookup(k, context) for k in keys]
    assert pending == [LookupResult.HIT_PENDING] * 4
    engine.step()
    engine.settle()
    assert [engine.lookup(k, context) for k in keys] == ["HIT", "HIT", "MISS", "HIT"]
    assert len(daemon.requests("Load")) == 1


def test_J01_load_error_is_one_failed_result(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    daemon.objects[key(1)] = bytes(engine.chunk_bytes)
    daemon.fail("Load", grpc.StatusCode.INVALID_ARGUMENT)
    context = engine.request("r1")
    assert engine.lookup(key(1), context) == "MISS"
    engine.settle()
    assert engine.lookup(key(1), context) == "MISS"


def test_J09_store_after_its_request_finished(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    context = engine.request("r1")
    engine.tier.on_request_finished(context)
    engine.store([key(1)], context, 5)
    engine.settle()
    assert key(1) in daemon.objects


def test_O05_engine_without_daemon_works_and_recovers(
    socket_dir: Any, make_engine: MakeEngine
) -> None:
    engine = make_engine(wait=False)
    context = engine.request("r1")
    assert engine.lookup(key(1), context) == "MISS"
    engine.store([key(1)], context, 5)
    engine.settle()
    assert engine.tier._client.counters["jobs_not_sent_no_session"] == 1
    daemon = ScriptedDaemon(socket_dir).start()
    try:
        assert engine.tier._client.wait_attached(2)
        engine.store([key(2)], context, 6)
        engine.settle()
        assert key(2) in daemon.objects
        other = engine.request("r2")
        engine.forget()
        assert engine.lookup(key(2), other) == "HIT"
    finally:
        daemon.die()


@pytest.mark.parametrize("what", ["absent", "silent", "hung"])
def test_J10_no_method_blocks(socket_dir: Any, make_engine: MakeEngine, what: str) -> None:
    daemon = None
    if what != "absent":
        daemon = ScriptedDaemon(socket_dir).start()
        if what == "hung":
            for method in ("Store", "Load", "Lookup", "Poll"):
                daemon.delays[method] = 3
    engine = make_engine(wait=what == "hung")
    if what == "silent" and daemon is not None:
        daemon.stop_grpc()
    tier, context = engine.tier, ReqContext(req_id="r1")
    longest = 0.0
    for number in range(200):
        job = type("Job", (), {})()
        job.job_id, job.keys, job.chunk_ids = 1000 + number, [key(number)], [number % 64]
        job.req_context = context
        for call in (
            lambda: tier.on_new_request(context),
            lambda n=number: tier.lookup(key(n), context),
            lambda job=job: tier.submit_store(job),
            tier.get_finished_jobs,
            tier.has_pending_work,
            lambda: tier.on_schedule_end(None),
            tier.get_stats,
            tier.take_events,
        ):
            begin = time.thread_time()
            wall = time.monotonic()
            call()
            longest = max(longest, time.monotonic() - wall - (time.thread_time() - begin))
    assert longest < 1.0, "a method waited for the daemon"
    if daemon is not None:
        daemon.die()


def test_reset_cache_drains(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    engine = make_engine()
    daemon.holding = True
    context = engine.request("r1")
    engine.store([key(n) for n in range(3)], context, 1)
    engine.step_until(lambda: daemon.sessions[0].held)
    engine.forget()
    assert not engine.manager._jobs
    assert daemon.requests("Drain")


def test_daemon_that_dies_loses_no_job(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    engine = make_engine()
    daemon.holding = True
    context = engine.request("r1")
    engine.store([key(1)], context, 1)
    engine.step_until(lambda: daemon.sessions[0].held)
    daemon.end_lease(daemon.sessions[0])
    engine.settle()
    assert engine.tier._client.counters["jobs_lost"] == 1


def test_results_carry_time_and_bytes(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    del daemon
    engine = make_engine()
    job = type("Job", (), {})()
    job.job_id, job.keys, job.block_ids, job.req_context = 5, [key(1)], [3], ReqContext("r")
    engine.tier.submit_store(job)
    got: list[JobResult] = []
    engine_end = time.monotonic() + 10
    while not got and time.monotonic() < engine_end:
        got.extend(engine.tier.get_finished_jobs())
        time.sleep(0.01)
    (result,) = got
    assert (result.job_id, result.success) == (5, True)
    if hasattr(result, "transfer_bytes"):
        assert result.transfer_bytes == engine.chunk_bytes
    assert result.transfer_time > 0


def test_kv_events_for_stored_keys_only(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    del daemon
    engine = make_engine(options={"enable_kv_events": True})
    context = engine.request("r1")
    engine.store([key(1), key(2)], context, 1)
    engine.settle()
    events = list(engine.tier.take_events())
    assert [set(event.keys) for event in events] == [{key(1), key(2)}]
    assert events[0].medium is vllm_tier.KVFerrySecondaryTierManager.medium
    assert events[0].locality.value == "REMOTE"
    assert not list(engine.tier.take_events())


def test_no_kv_events_by_default(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    del daemon
    engine = make_engine()
    engine.store([key(1)], engine.request("r1"), 1)
    engine.settle()
    assert not list(engine.tier.take_events())


def test_metrics_are_declared(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    del daemon
    engine = make_engine()
    engine.store([key(1)], engine.request("r1"), 1)
    engine.settle()
    stats = engine.tier.get_stats()
    definitions = vllm_tier.KVFerrySecondaryTierManager.build_metric_definitions({})
    for name, series in stats.data["data"].items():
        assert name.startswith("vllm:kv_offload_kvferry_")
        for labels in series:
            assert len(labels) == len(definitions[name].labelnames)
    assert set(stats.data["data"]) == set(definitions)
    reduced = stats.reduce()
    assert reduced["vllm:kv_offload_kvferry_chunks:('store', 'stored')"] == 1
    assert engine.tier.get_stats() is None


def test_P04_two_tiers_in_one_process(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    first, second = make_engine(), make_engine()
    for engine, number in ((first, 1), (second, 2)):
        engine.store([key(number)], engine.request("r"), 1)
        engine.settle()
    assert len(daemon.objects) == 2


def test_X02_credentials_in_the_tier_config_are_refused(make_engine: MakeEngine) -> None:
    before = set(threading.enumerate())
    for name in ("secret_key", "aws_access_key_id", "session_token", "PASSWORD"):
        with pytest.raises(ValueError, match=name) as caught:
            make_engine(wait=False, options={name: "hunter2hunter2"})
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="move it to the daemon") as caught:
        make_engine(wait=False, options={"store_config": {"bucket": "b"}})
    with pytest.raises(ValueError, match=r"store_config\.secret_key") as caught:
        make_engine(wait=False, options={"store_config": {"secret_key": "hunter2"}})
    assert "hunter2" not in str(caught.value)
    assert set(threading.enumerate()) <= before


def test_unknown_options_warn_with_the_nearest_name(
    make_engine: MakeEngine,
) -> None:
    with log_lines() as lines:
        make_engine(wait=False, options={"socketdir": "x", "io_threads": 4})
    text = "\n".join(lines)
    assert "did you mean 'socket_dir'" in text
    assert "io_threads" in text


@needs_seed
def test_K04_warns_once_where_hashes_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vllm_tier.hash_seed_warning({}) == ""
    monkeypatch.setattr(kv_cache_utils, "_NONE_HASH_SEED", "random")
    assert "PYTHONHASHSEED" in vllm_tier.hash_seed_warning({})
    assert vllm_tier.hash_seed_warning({"PYTHONHASHSEED": "0"}) == ""
    monkeypatch.delattr(kv_cache_utils, "get_none_hash_seed")
    monkeypatch.delattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
    assert "PYTHONHASHSEED" in vllm_tier.hash_seed_warning({})


@needs_seed
def test_K04_is_checked_at_the_first_request(
    daemon: ScriptedDaemon,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del daemon
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(kv_cache_utils, "_NONE_HASH_SEED", "random")
    engine = make_engine()
    with log_lines() as lines:
        engine.request("r1")
        engine.request("r2")
    assert sum("PYTHONHASHSEED" in line for line in lines) == 1


def test_loads_by_module_path(daemon: ScriptedDaemon, socket_dir: Any) -> None:
    del daemon
    for name in ("kvferry", "KVFerrySecondaryTierManager"):
        config = {"type": name, "module_path": "kvferry_client.vllm_tier"}
        tier_class = SecondaryTierFactory.get_tier_class({**config, "socket_dir": str(socket_dir)})
        assert tier_class is vllm_tier.KVFerrySecondaryTierManager


def test_a_bug_in_the_tier_does_not_reach_the_engine(
    daemon: ScriptedDaemon, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    del daemon
    engine = make_engine()

    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise KeyError("bug")

    for name in ("lookup", "submit_store", "submit_load", "finish_request", "flush"):
        monkeypatch.setattr(type(engine.tier._logic), name, broken)
    context = engine.request("r1")
    assert engine.manager.lookup(key(1), context) is LookupResult.MISS
    engine.store([key(1)], context, 1)
    monkeypatch.undo()
    engine.settle()
    engine.manager.on_request_finished(context)


def test_namespace_is_one_clean_component(daemon: ScriptedDaemon, make_engine: MakeEngine) -> None:
    make_engine()
    request = daemon.sessions[0].request
    assert request.namespace.startswith("org_model_r_1_x_y_")
    assert request.namespace.endswith("_r0")
    assert request.slot_bytes == request.slot_stride_bytes
