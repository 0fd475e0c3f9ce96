"""vLLM's own backpressure detector works with what the tier reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from tests.client.scripted import ScriptedDaemon

from .conftest import Engine

pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="vLLM has it from 0.31 on")
if not hasattr(SecondaryTierManager, "bp_detector"):
    pytest.skip("vLLM has it from 0.31 on", allow_module_level=True)
from vllm.v1.kv_offload.tiering import backpressure

pytestmark = pytest.mark.vllm


class Recorder(backpressure.BackpressureDetector):  # type: ignore[misc]
    """vLLM's detector as a base, with what it was told."""

    def __init__(self) -> None:
        super().__init__(backpressure.DropStorePolicy())
        self.told: list[tuple[float, int]] = []
        self.pressed = False

    def on_store_completed(self, elapsed_s: float, num_bytes: int) -> None:
        self.told.append((elapsed_s, num_bytes))

    def is_under_pressure(self) -> bool:
        return self.pressed

    def reset(self) -> None:
        self.told.clear()

    @property
    def stats(self) -> dict[str, float]:
        return {}


def key(number: int) -> bytes:
    return make_offload_key(number.to_bytes(32, "big"), 0)


def test_it_is_told_the_bytes_that_moved_and_stores_stop_under_pressure(
    daemon: ScriptedDaemon, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine()
    detector = Recorder()
    engine.tier._bp_detector = detector
    assert engine.tier.bp_detector is detector
    context = engine.request("r")
    engine.store([key(1), key(2)], context, 1)
    engine.settle()
    assert [told[1] for told in detector.told] == [2 * engine.chunk_bytes]
    engine.forget()
    detector.told.clear()
    engine.store([key(1), key(2)], engine.request("r2"), 1)
    engine.settle()
    assert detector.told == [], "nothing moved: the objects were there, so there is no latency"
    detector.pressed = True
    before = len(daemon.requests("Store"))
    engine.store([key(3)], context, 1)
    engine.settle()
    assert len(daemon.requests("Store")) == before
    assert detector.policy.pop_stores_dropped() == (1, 1)


def test_vllms_detectors_are_configured_in_the_tiers_entry(
    daemon: ScriptedDaemon, make_engine: Callable[..., Engine]
) -> None:
    options = {
        "backpressure": {
            "backpressure_cls": "EMABackpressureDetector",
            "high_water_s": 1e-9,
            "low_water_s": 1e-10,
        }
    }
    engine = make_engine(options=options)
    assert isinstance(engine.tier.bp_detector, backpressure.EMABackpressureDetector)
    context = engine.request("r")
    for number in range(50):
        engine.store([key(number)], context, 1)
        engine.settle()
        if engine.tier.bp_detector.is_under_pressure():
            break
    assert engine.tier.bp_detector.is_under_pressure()
    assert daemon.requests("Store")
