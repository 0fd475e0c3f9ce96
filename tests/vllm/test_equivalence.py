"""The in-tree `obj` tier and kvferry do the same, behind vLLM's own manager, on one S3 server.

Every scenario runs with both. Where they differ, `differs` says what each does, and the table in
docs/equivalence.md, which `equivalence` writes, says why ours is meant so.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult, make_offload_key

from . import leaving
from .conftest import Engine
from .equivalence import BEYOND, CASES, DIFFERENCES, render
from .sides import HAS_NIXL, HAS_SERVER, ROOT, Backend, Side, job

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not HAS_SERVER, reason="needs the development environment (.venv)"),
    pytest.mark.skipif(not HAS_NIXL, reason="needs nixl for the in-tree tier"),
]
_made = iter(range(1, 1 << 20))


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with tempfile.TemporaryDirectory(prefix="kvf") as name:
        made = Backend(Path(name))
        yield made
        made.close()


@pytest.fixture(scope="module")
def sides(backend: Backend) -> Iterator[dict[str, Side]]:
    made = {kind: Side(kind, backend) for kind in ("obj", "kvferry")}
    yield made
    for side in made.values():
        side.close()


@pytest.fixture(params=["obj", "kvferry"])
def side(request: pytest.FixtureRequest, sides: dict[str, Side]) -> Iterator[Side]:
    found = sides[request.param]
    yield found
    for engine in list(found.engines):
        found.end(engine)


def fresh(count: int = 1, group: int = 0) -> list[bytes]:
    """Keys that no test has used."""
    return [make_offload_key(next(_made).to_bytes(32, "big"), group) for _ in range(count)]


def record(engine: Engine) -> list[Any]:
    """Collect the results of the tier's jobs on their way to the manager."""
    seen: list[Any] = []
    original = engine.tier.get_finished_jobs

    def recorded() -> list[Any]:
        results = list(original())
        seen.extend(results)
        return results

    engine.tier.get_finished_jobs = recorded
    return seen


def stored(engine: Engine, keys: list[bytes], byte: int = 7) -> None:
    """Store keys and drop them from the CPU tier."""
    context = engine.request("writer")
    engine.store(keys, context, byte)
    engine.settle()
    engine.manager.on_request_finished(context)
    engine.forget()


def found_in_tier(engine: Engine, keys: list[bytes], context: Any) -> list[str]:
    """What the tier itself says, without the promotion that the manager would begin."""
    answers: list[LookupResult] = []

    def answered() -> bool:
        answers[:] = [engine.tier.lookup(key, context) for key in keys]
        engine.tier.on_schedule_end(None)
        return LookupResult.RETRY not in answers

    engine.step_until(answered)
    return [answer.name for answer in answers]


def results_of(engine: Engine, count: int, seconds: float = 30.0) -> dict[int, bool]:
    got: list[Any] = []
    end = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < end:
        got.extend(engine.tier.get_finished_jobs())
        time.sleep(0.01)
    assert len(got) == count
    return {result.job_id: result.success for result in got}


def delete(side: Side, key: bytes) -> None:
    [name] = [each for each in side.objects() if key[:-4].hex() in each]
    side.backend("delete", key=name)


def test_empty_lookup(side: Side) -> None:
    engine = side.engine()
    assert engine.lookup(fresh()[0], engine.request("r")) == "MISS"


def test_store_then_lookup(side: Side) -> None:
    engine, [key] = side.engine(), fresh()
    stored(engine, [key])
    assert engine.lookup(key, engine.request("r")) == "HIT"


def test_unrelated_key(side: Side) -> None:
    engine, [key, other] = side.engine(), fresh(2)
    stored(engine, [key])
    assert engine.lookup(other, engine.request("r")) == "MISS"


def test_store_load_round_trip(side: Side) -> None:
    engine, keys = side.engine(), fresh(5)
    for number, key in enumerate(keys):
        stored(engine, [key], 20 + number)
    engine.rows[:] = 0
    context = engine.request("r")
    for number, key in enumerate(keys):
        assert engine.lookup(key, context) == "HIT"
        spec = engine.manager.prepare_load([key], context)
        assert (engine.rows[engine.slots(spec)[0]] == 20 + number).all()
        engine.manager.complete_load([key], context)


def test_several_jobs_tracked_apart(side: Side) -> None:
    engine, keys = side.engine(), fresh(3)
    for number, key in enumerate(keys):
        engine.tier.submit_store(job(900 + number, [key], [number]))
    assert results_of(engine, 3) == {900: True, 901: True, 902: True}
    assert not list(engine.tier.get_finished_jobs())


def test_multi_block_store_and_partial_lookup(side: Side) -> None:
    engine, keys = side.engine(), fresh(6)
    stored(engine, [keys[0], keys[2], keys[5]])
    answers = found_in_tier(engine, keys, engine.request("r"))
    assert answers == ["HIT", "MISS", "HIT", "MISS", "MISS", "HIT"]


def test_cascade_goes_to_the_store_once(side: Side) -> None:
    engine, keys = side.engine(), fresh(4)
    results = record(engine)
    before = len(side.objects())
    stored(engine, keys)
    assert len(side.objects()) == before + 4
    stored(engine, keys)
    assert len(side.objects()) == before + 4
    assert all(result.success for result in results)


def test_promotion_is_one_job_for_a_request(side: Side) -> None:
    engine, keys = side.engine(), fresh(4)
    stored(engine, keys)
    context = engine.request("r")
    assert found_in_tier(engine, keys, context) == ["HIT"] * 4
    results = record(engine)
    assert [engine.manager.lookup(key, context).name for key in keys] == ["HIT_PENDING"] * 4
    engine.step()
    engine.settle()
    assert [engine.lookup(key, context) for key in keys] == ["HIT"] * 4
    assert [result.success for result in results] == [True]


def test_failed_load_turns_the_verdict_negative(side: Side) -> None:
    engine, [key] = side.engine(), fresh()
    stored(engine, [key])
    context = engine.request("r")
    assert found_in_tier(engine, [key], context) == ["HIT"]
    delete(side, key)
    results = record(engine)
    assert engine.lookup(key, context) == "MISS"
    engine.settle()
    for _ in range(3):
        assert engine.lookup(key, context) == "MISS"
    assert [result.success for result in results] == [False]


def test_mixed_success_and_failure(side: Side) -> None:
    engine, keys = side.engine(), fresh(2)
    stored(engine, keys)
    delete(side, keys[1])
    engine.tier.submit_load(job(910, [keys[0]], [0]))
    engine.tier.submit_load(job(911, [keys[1]], [1]))
    assert results_of(engine, 2) == {910: True, 911: False}


def test_partly_failed_load(side: Side) -> None:
    engine, keys = side.engine(), fresh(3)
    stored(engine, keys)
    context = engine.request("r")
    assert found_in_tier(engine, keys, context) == ["HIT"] * 3
    delete(side, keys[1])
    [engine.manager.lookup(key, context) for key in keys]
    engine.step()
    engine.settle()
    answers = [engine.lookup(key, context) for key in keys]
    differs(side, "partial", answers)


def test_pins_are_released_once(side: Side) -> None:
    engine, keys = side.engine(), fresh(4)
    stored(engine, keys)
    context = engine.request("r")
    assert found_in_tier(engine, keys, context) == ["HIT"] * 4
    delete(side, keys[3])
    [engine.manager.lookup(key, context) for key in keys]
    engine.step()
    engine.settle()
    engine.manager.on_request_finished(context)
    whole = len(engine.rows)
    other = engine.request("filler")
    filler = fresh(whole)
    assert engine.manager.prepare_store(filler, other) is not None, "a slot is still pinned"
    engine.manager.complete_store(filler, other)
    engine.settle()


def test_drain_polls_to_the_end(side: Side) -> None:
    engine, keys = side.engine(), fresh(8)
    engine.tier.submit_store(job(920, keys[:4], [0, 1, 2, 3]))
    engine.tier.submit_store(job(921, keys[4:], [4, 5, 6, 7]))
    engine.tier.drain_jobs()
    results = {result.job_id: result.success for result in engine.tier.get_finished_jobs()}
    assert set(results) == {920, 921}
    if side.kind == "obj":
        assert all(results.values())


def test_pending_transfer_is_not_returned(side: Side) -> None:
    engine, [key] = side.engine(), fresh()
    side.backend("freeze")
    try:
        engine.tier.submit_store(job(930, [key], [0]))
        for _ in range(20):
            assert not list(engine.tier.get_finished_jobs())
            time.sleep(0.01)
    finally:
        side.backend("thaw")
    assert results_of(engine, 1) == {930: True}


def test_reset_cache_keeps_what_is_stored(side: Side) -> None:
    engine, keys = side.engine(), fresh(3)
    stored(engine, keys)
    context = engine.request("r")
    for key in keys:
        engine.manager.lookup(key, context)
    engine.forget()
    assert not engine.manager._jobs
    assert found_in_tier(engine, keys, engine.request("later")) == ["HIT"] * 3


def test_submission_failures(side: Side) -> None:
    engine, [key] = side.engine(), fresh()
    try:
        engine.tier.submit_store(job(940, [key], [1 << 20]))
        outcome = "result" if results_of(engine, 1)[940] else "failed result"
    except Exception as error:  # noqa: BLE001 - that is the difference
        outcome = f"raises {type(error).__name__}"
    differs(side, "submission", outcome)


def test_shutdown_with_transfers_in_flight_twice(side: Side) -> None:
    """In a process of its own, which the in-tree tier may take with it."""
    ends = leaving.run(side)
    assert ends == 0 or (side.kind == "obj" and ends == -signal.SIGSEGV)


@pytest.mark.parametrize("locality", ["LOCAL", "REMOTE", None])
def test_kv_events_for_what_is_stored(side: Side, locality: str | None) -> None:
    engine = side.engine({"enable_kv_events": True, "locality": locality})
    keys = fresh(3)
    stored(engine, keys)
    events = list(engine.tier.take_events())
    assert [key for event in events for key in event.keys] == keys
    assert {(event.medium.name, event.removed) for event in events} == {("STORAGE", False)}
    assert {event.locality and event.locality.value for event in events} == {locality}
    assert not list(engine.tier.take_events())
    stored(engine, fresh(1))
    engine.lookup(keys[0], engine.request("r"))
    engine.settle()
    assert sum(len(event.keys) for event in engine.tier.take_events()) == 1


def test_kv_events_are_off_by_default(side: Side) -> None:
    engine = side.engine()
    stored(engine, fresh(1))
    assert not list(engine.tier.take_events())


def test_kv_events_obey_the_global_flag(side: Side) -> None:
    engine = side.engine({"enable_kv_events": True}, enable_kv_cache_events=False)
    stored(engine, fresh(1))
    assert not list(engine.tier.take_events())


@pytest.mark.parametrize(
    "store_config",
    [
        {},
        {"access_key": "", "secret_key": ""},
        {"session_token": "kvferry-test-token"},
        {"region": "us-east-1"},
        {"ca_bundle": "/etc/ssl/certs/ca-certificates.crt"},
    ],
    ids=["keys", "no keys", "session token", "region", "ca_bundle"],
)
def test_credentials_in_the_config(
    side: Side, store_config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = side.backend.where
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", where["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", where["secret_key"])
    if side.kind == "kvferry":
        with pytest.raises(ValueError, match="move it to the daemon"):
            side.engine({"store_config": {"bucket": "b", **store_config}})
        differs(side, "credentials", "refused")
        return
    engine, [key] = side.engine({"store_config": store_config}), fresh()
    stored(engine, [key])
    assert engine.lookup(key, engine.request("r")) == "HIT"
    differs(side, "credentials", "taken")


def test_io_threads_is_taken(side: Side) -> None:
    engine, [key] = side.engine({"io_threads": 2}), fresh()
    stored(engine, [key])
    assert engine.lookup(key, engine.request("r")) == "HIT"


def test_lookup_failure_is_a_miss(side: Side) -> None:
    engine, [key] = side.engine(), fresh()
    side.backend("stop_server")
    try:
        assert engine.lookup(key, engine.request("r"), timeout=120) == "MISS"
    finally:
        side.backend("start_server")


def test_failed_store_is_reported(side: Side) -> None:
    engine, [key] = side.engine({"enable_kv_events": True}), fresh()
    results = record(engine)
    side.backend("stop_server")
    try:
        context = engine.request("r")
        engine.store([key], context, 1)
        engine.step_until(lambda: results, 60)
    finally:
        side.backend("start_server")
    assert [result.success for result in results] == [False]
    assert not list(engine.tier.take_events())


def test_server_down_at_the_start(side: Side) -> None:
    side.engine()  # The daemon knows its server; the engine below does not.
    side.backend("stop_server")
    try:
        engine = side.engine()
        outcome = engine.lookup(fresh()[0], engine.request("r"))
    except Exception as error:  # noqa: BLE001 - that is the difference
        outcome = f"raises {type(error).__name__}"
    finally:
        side.backend("start_server")
    differs(side, "down at start", outcome)


def differs(side: Side, name: str, found: object) -> None:
    """Check what each side does where they differ."""
    assert found == getattr(DIFFERENCES[name], side.kind)


def test_the_document_is_fresh_and_names_tests_that_exist() -> None:
    fresh = (ROOT / "docs" / "equivalence.md").read_text() == render()
    assert fresh, "run `python -m tests.vllm.equivalence > docs/equivalence.md`"
    elsewhere = {"test_J01_no_answer_loses_a_job"}
    assert {*CASES.values(), *BEYOND.values()} - elsewhere <= set(globals())
