"""What a whole daemon sends to S3 from its start to its end, and what one refused request costs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from kvferry_client import Outcome, Presence
from tests.support.fault_server import Fault, Request

from .rig import Scenario
from .stores import PREFIX

CHUNKS = f"{PREFIX}/faults/*"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scenario]:
    scenario = Scenario("stub")
    try:
        scenario.start()
        yield scenario
    finally:
        scenario.close()


@pytest.fixture(scope="module")
def life(scene: Scenario) -> list[Request]:
    """Preflight, stores, loads, a miss, lookups, and the end by SIGTERM."""
    engine = scene.engine
    keys = engine.stored()
    engine.load([*keys, *engine.new_keys(1)])
    assert sorted(engine.settle()) == sorted([Outcome.LOADED] * 4 + [Outcome.MISSING])
    assert engine.look_up([*keys, *engine.new_keys(1)]) == (
        *[Presence.PRESENT] * 4,
        Presence.ABSENT,
    )
    requests = list(scene.stub.requests())
    scene.daemon.running.signal(signal.SIGTERM)
    assert scene.daemon.ended() == 0
    return [*requests, *scene.stub.requests()[len(requests) :]]


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_S02_429_once_then_200_is_a_success(scene, method):
    engine = scene.engine
    keys = engine.stored(2)
    rule = scene.stub.add(Fault(method=method, key=CHUNKS, status=429, code="SlowDown", times=1))
    before = scene.answered(method, 429)
    if method == "HEAD":
        assert engine.look_up(engine.new_keys(2)) == (Presence.ABSENT,) * 2
    elif method == "PUT":
        engine.stored(2)
    else:
        engine.load(keys)
        assert engine.settle() == [Outcome.LOADED] * 2
    assert scene.answered(method, 429) == before + 1
    scene.stub.remove(rule)


def test_H03_no_request_signs_accept_encoding(life):
    """Some servers change that header on its way, which breaks a signature over it."""
    signed = [re.search(r"SignedHeaders=([^,]+)", each.headers["authorization"]) for each in life]
    assert {each.method for each in life} == {"PUT", "GET", "HEAD", "DELETE"}
    for found in signed:
        assert found is not None
        assert "accept-encoding" not in found[1].split(";")
        assert "host" in found[1].split(";")


def test_H04_nothing_is_deleted_in_batches(life):
    """Some servers want checksums there that others refuse: one DELETE an object, and few."""
    assert [each for each in life if each.method == "POST" or "delete" in each.query] == []
    deleted = [each.key for each in life if each.method == "DELETE"]
    assert deleted
    assert all("preflight" in key for key in deleted)
