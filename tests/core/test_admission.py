"""Second-touch admission, request and byte budgets, and why chunks are refused."""

from __future__ import annotations

import pytest

from kvferry_server.core.admission import AdmissionPolicy
from kvferry_server.core.effects import JobFinished
from kvferry_server.core.engine import refusals_of
from kvferry_server.core.events import SetPaused, StoreReadiness
from kvferry_server.core.types import (
    EngineSettings,
    JobKind,
    Outcome,
    Presence,
    Refusal,
    TransferStatus,
)
from tests.core.world import LOAD, STORE, World, job, ref, started

UNAVAILABLE = TransferStatus.UNAVAILABLE


def world(**settings: float) -> World:
    w = World(**settings)
    w.open()
    return w


def refused(w: World, kind: JobKind) -> dict[Refusal, int]:
    """Counts above 0."""
    counts = {each: w.counters[f"refused_{kind.name.lower()}_{each}"] for each in refusals_of(kind)}
    return {each: count for each, count in counts.items() if count}


def test_by_default_every_store_is_admitted():
    w = world()
    assert started(w.store(1, "ab")) == ["a", "b"]
    assert w.engine.offer_entries == 0


def test_a_key_is_stored_at_its_second_offer():
    w = world(min_offers=2)
    assert started(w.store(1, "ab")) == []
    assert w.outcomes(1) == (Outcome.SHED, Outcome.SHED)
    assert refused(w, STORE) == {Refusal.MIN_OFFERS: 2}
    assert w.engine.offer_entries == 2
    assert started(w.store(2, "bc", 2)) == ["b"]
    w.finish("b")
    assert w.outcomes(2) == (Outcome.STORED, Outcome.SHED)
    assert w.engine.offer_entries == 2


def test_a_job_tells_how_many_chunks_were_withheld():
    w = world(min_offers=2)
    assert w.store(1, "ab").one(JobFinished).withheld == 2
    w.do(SetPaused(stores=True, loads=None))
    assert w.store(2, "ab").one(JobFinished).withheld == 0


def test_offers_are_counted_per_object_not_per_key():
    w = world(min_offers=2)
    w.open("other", space="elsewhere")
    w.store(1, "a")
    assert started(w.store(1, "a", session="other")) == []


def test_an_offer_that_is_skipped_or_refused_otherwise_is_not_counted():
    w = world(min_offers=2)
    w.learn("a", Presence.PRESENT)
    w.store(1, "a")
    w.do(SetPaused(stores=True, loads=None))
    w.store(2, "b")
    assert w.engine.offer_entries == 0


def test_the_count_of_offers_is_bounded_and_forgets_the_oldest():
    policy = AdmissionPolicy(EngineSettings(min_offers=2, max_offer_entries=2))
    for name in "abac":
        policy.offer(ref(name), 1, 0.0)
    assert len(policy) == 2
    assert policy.offer(ref("a"), 1, 0.0) is None
    assert policy.offer(ref("b"), 1, 0.0) is Refusal.MIN_OFFERS


def test_a_failed_upload_is_admitted_again_at_once():
    w = world(min_offers=2, max_attempts=1)
    w.store(1, "a")
    w.store(2, "a")
    w.finish("a", UNAVAILABLE)
    assert started(w.store(3, "a")) == ["a"]


def test_puts_beyond_the_budget_are_shed_at_once_and_the_budget_fills_again():
    w = world(max_puts_per_second=2, put_burst_seconds=2)
    assert started(w.store(1, "abcde")) == ["a", "b", "c", "d"]
    assert refused(w, STORE) == {Refusal.PUT_RATE: 1}
    w.tick(0.5)
    assert started(w.store(2, "fg", 8)) == ["f"]
    w.tick(100)
    assert started(w.store(3, "hijkl", 16)) == ["h", "i", "j", "k"]


def test_bytes_beyond_the_budget_are_shed_at_once():
    w = world(max_put_bytes_per_second=100, put_burst_seconds=2)
    assert started(w.store(1, "abc")) == ["a", "b"]
    assert refused(w, STORE) == {Refusal.BYTE_RATE: 1}
    w.tick(1.0)
    assert started(w.store(2, "de", 8)) == ["d"]


def test_a_chunk_larger_than_the_whole_budget_passes_when_the_budget_is_full():
    w = world(max_put_bytes_per_second=1, put_burst_seconds=10)
    assert started(w.store(1, "ab")) == ["a"]
    w.tick(99)
    assert started(w.store(2, "c", 8)) == []
    w.tick(1)
    assert started(w.store(3, "d", 9)) == ["d"]


def test_a_retry_spends_the_budget_too():
    w = world(max_puts_per_second=1, put_burst_seconds=2, backoff_base_seconds=0.001)
    w.store(1, "a")
    w.finish("a", UNAVAILABLE)
    assert started(w.store(2, "b", 8)) == []
    assert refused(w, STORE) == {Refusal.PUT_RATE: 1}


def test_loads_are_never_held_back():
    w = world(min_offers=3, max_puts_per_second=0.001)
    assert started(w.load(1, "abc")) == ["a", "b", "c"]


@pytest.mark.parametrize(("kind", "outcome"), [(STORE, Outcome.SHED), (LOAD, Outcome.UNAVAILABLE)])
def test_every_refusal_is_counted_with_its_reason(kind, outcome):
    w = World(ready=False, breaker_failures=1, max_attempts=1)
    w.open()
    w.submit(kind, job(1, "a"))
    assert w.outcomes(1) == (outcome,)
    assert refused(w, kind) == {Refusal.NOT_READY: 1}
    w.do(StoreReadiness(ready=True))
    w.do(SetPaused(stores=True, loads=True))
    w.submit(kind, job(2, "a"))
    assert w.outcomes(2) == (Outcome.SHED,)
    w.do(SetPaused(stores=False, loads=False))
    w.submit(kind, job(3, "a"))
    w.finish_all(UNAVAILABLE)
    w.submit(kind, job(4, "a"))
    assert w.outcomes(4) == (outcome,)
    assert refused(w, kind) == {Refusal.NOT_READY: 1, Refusal.PAUSED: 1, Refusal.BREAKER: 1}


def test_a_full_queue_is_counted_with_its_reason():
    w = world(max_active_chunks=1, max_queued_store_bytes=100)
    w.store(1, "abc")
    assert refused(w, STORE) == {Refusal.QUEUE_FULL: 2}
