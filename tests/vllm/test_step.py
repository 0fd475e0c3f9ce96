"""A step's methods: no pass of the collector inside; lookup times reach the metrics."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from vllm.v1.kv_offload.base import ReqContext, make_offload_key

from tests.client.scripted import ScriptedDaemon

from .conftest import Engine

pytestmark = pytest.mark.vllm
SECONDS = "vllm:kv_offload_kvferry_lookup_seconds"


def key(number: int) -> bytes:
    return make_offload_key(number.to_bytes(32, "big"), 0)


@pytest.fixture
def passes() -> Iterator[list[int]]:
    """Generations of the collector's passes; one is due after every few objects."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    before = gc.get_threshold()
    gc.set_threshold(1, 2, 2)
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*before)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_pass_inside_and_the_collector_is_left_as_it_was(
    daemon: ScriptedDaemon, make_engine: Callable[..., Engine], passes: list[int], enabled: bool
) -> None:
    del daemon
    tier = make_engine().tier
    context = ReqContext(req_id="r")
    inside: list[int] = []
    original = tier._logic.lookup

    def lookup(*arguments: object) -> object:
        before = len(passes)
        garbage = [[number] for number in range(1000)]
        inside.append(len(passes) - before)
        del garbage
        return original(*arguments)

    tier._logic.lookup = lookup
    (gc.enable if enabled else gc.disable)()
    try:
        tier.lookup(key(1), context)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert inside == [0]


def test_a_fault_inside_leaves_the_collector_on(
    daemon: ScriptedDaemon, make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    del daemon
    tier = make_engine().tier

    def broken(*_arguments: object) -> object:
        raise KeyError("bug")

    monkeypatch.setattr(tier._logic, "has_pending_work", broken)
    assert tier.has_pending_work()
    assert gc.isenabled()


def test_lookup_times_are_a_histogram_that_is_there_from_the_start(
    daemon: ScriptedDaemon, make_engine: Callable[..., Engine]
) -> None:
    del daemon
    engine = make_engine()
    first = engine.tier.get_stats()
    assert first.data["types"][SECONDS] == "histogram"
    assert first.data["data"][SECONDS] == {(): []}
    context = engine.request("r")
    assert engine.lookup(key(1), context) == "MISS"
    stats = engine.tier.get_stats()
    [seconds] = stats.data["data"][SECONDS][()]
    assert 0 < seconds < 20
    definition = engine.tier.build_metric_definitions({})[SECONDS]
    assert definition.buckets[0] < definition.buckets[-1]
