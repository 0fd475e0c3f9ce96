"""Breakers, readiness and what a paused or absent store does to chunks, through the engine."""

import pytest

from kvferry_server.core.effects import BreakerChanged, StartTransfer
from kvferry_server.core.events import StoreReadiness
from kvferry_server.core.types import BreakerState, JobKind, Outcome, TransferStatus

from .world import ABSENT, LOAD, STORE, UNAVAILABLE, UNKNOWN, World, job, started


def world(**settings):
    made = World(**({"max_active_chunks": 4, "transfer_seconds": 1000.0} | settings))
    made.open()
    return made


def trip(w, kind, names="qrs"):
    """Open a breaker of three failures; attempts are single."""
    first = 900 + 10 * w.last_id + kind
    w.submit(kind, job(first, names, 50))
    for name in names:
        w.finish(name, UNAVAILABLE)


def breaker_world(**settings):
    return world(max_attempts=1, breaker_failures=3, breaker_cooldown_seconds=5.0, **settings)


@pytest.mark.parametrize(("kind", "ending"), [(STORE, Outcome.SHED), (LOAD, Outcome.UNAVAILABLE)])
def test_an_open_breaker_fails_fast_what_waits_and_what_comes(kind, ending):
    w = breaker_world(max_active_chunks=3)
    other = LOAD if kind is STORE else STORE
    w.submit(kind, job(1, "abcdefg"))
    for name in "abc":
        w.finish(name, UNAVAILABLE)
    assert w.engine.breaker_states(w.now) == {kind: BreakerState.OPEN, other: BreakerState.CLOSED}
    assert w.log.of(BreakerChanged) == [BreakerChanged(kind, BreakerState.OPEN)]
    assert w.engine.queued == {STORE: 0, LOAD: 0}
    assert w.running
    assert not w.finish_all(UNAVAILABLE).of(StartTransfer)
    assert w.outcomes(1)[0] is Outcome.UNAVAILABLE
    assert w.outcomes(1)[-1] is ending
    w.submit(kind, job(2, "x"))
    assert w.outcomes(2) == (ending,)
    assert started(w.submit(other, job(3, "y"))) == ["y"]


def test_retries_that_wait_are_dropped_when_the_breaker_opens():
    w = world(breaker_failures=4)
    w.load(1, "abcd")
    for name in "abc":
        w.finish(name, UNAVAILABLE)
    assert w.engine.queued[LOAD] == 3
    w.finish("d", UNAVAILABLE)
    assert w.outcomes(1) == (Outcome.UNAVAILABLE,) * 4


def test_loads_that_wait_are_dropped_when_probes_open_the_read_breaker():
    w = world(max_active_chunks=1, breaker_failures=1)
    w.load(1, "ab")
    w.start_lookup("x")
    w.probed(UNKNOWN, failed=True)
    assert w.engine.queued[LOAD] == 0
    w.finish("a")
    assert w.outcomes(1) == (Outcome.LOADED, Outcome.UNAVAILABLE)


def test_a_half_open_breaker_runs_one_trial_that_closes_it():
    w = breaker_world()
    trip(w, STORE)
    assert w.engine.next_wakeup(w.now) <= w.now + 5
    assert w.tick(5).of(BreakerChanged) == [BreakerChanged(STORE, BreakerState.HALF_OPEN)]
    assert started(w.store(1, "abc")) == ["a"]
    w.store(2, "d", 10)
    assert w.outcomes(2) == (Outcome.SHED,)
    done = w.finish("a")
    assert done.of(BreakerChanged) == [BreakerChanged(STORE, BreakerState.CLOSED)]
    assert w.outcomes(1) == (Outcome.STORED, Outcome.SHED, Outcome.SHED)
    assert started(w.store(3, "xyz")) == ["x", "y", "z"]


@pytest.mark.parametrize("status", [UNAVAILABLE, TransferStatus.INTERNAL])
def test_a_failed_trial_is_not_retried_and_opens_the_breaker_again(status):
    w = world(max_attempts=1, breaker_failures=1, breaker_cooldown_seconds=5.0)
    w.load(1, "a")
    w.finish("a", UNAVAILABLE)
    w.tick(5)
    w.load(2, "b")
    done = w.finish("b", status)
    assert done.of(BreakerChanged) == [BreakerChanged(LOAD, BreakerState.OPEN)]
    assert w.outcomes(2) == (Outcome[status.name],)
    w.tick(4.9)
    w.load(3, "c")
    assert w.outcomes(3) == (Outcome.UNAVAILABLE,)


def test_a_trial_is_not_retried_even_if_attempts_are_left():
    w = world(breaker_failures=1, max_attempts=9, breaker_cooldown_seconds=5.0)
    trip(w, LOAD, "q")
    w.tick(5)
    w.load(1, "a")
    w.finish("a", UNAVAILABLE)
    assert w.outcomes(1) == (Outcome.UNAVAILABLE,)


@pytest.mark.parametrize(
    "status", [TransferStatus.MISSING, TransferStatus.CORRUPT, TransferStatus.DENIED]
)
def test_S04_an_answer_of_the_store_is_no_infrastructure_failure(status):
    w = breaker_world()
    for job_id in range(1, 9):
        w.load(job_id, "ab")
        w.finish("a", UNAVAILABLE)
        w.finish("b", status)
    assert w.engine.breaker_states(w.now)[LOAD] is BreakerState.CLOSED


def test_faults_of_this_side_say_nothing_about_the_store():
    w = breaker_world()
    w.load(1, "abcd")
    for name in "ab":
        w.finish(name, UNAVAILABLE)
    w.finish("c", TransferStatus.INTERNAL)
    w.finish("d", UNAVAILABLE)
    assert w.engine.breaker_states(w.now)[LOAD] is BreakerState.OPEN


def test_a_passed_preflight_closes_both_breakers():
    w = breaker_world()
    trip(w, STORE)
    trip(w, LOAD)
    done = w.do(StoreReadiness(ready=True))
    assert {e.kind: e.state for e in done.of(BreakerChanged)} == dict.fromkeys(
        JobKind, BreakerState.CLOSED
    )
    assert started(w.store(1, "a")) == ["a"]


def test_a_store_that_is_not_ready_sheds_stores_and_fails_loads():
    w = World(ready=False)
    w.open()
    assert not w.engine.store_ready
    w.store(1, "a")
    w.load(2, "b")
    assert (w.outcomes(1), w.outcomes(2)) == ((Outcome.SHED,), (Outcome.UNAVAILABLE,))
    w.do(StoreReadiness(ready=True))
    assert w.engine.store_ready
    assert started(w.store(3, "a")) == ["a"]


def test_a_key_that_is_shed_twice_in_one_request_is_no_store_in_flight():
    w = World(ready=False)
    w.open()
    w.submit(STORE, job(1, "a"), job(2, "a"))
    assert w.outcomes(1) == w.outcomes(2) == (Outcome.SHED,)


def test_losing_readiness_drops_what_is_queued_and_awaits_what_runs():
    w = world(max_active_chunks=2)
    w.load(1, "ab")
    w.load(2, "cd", 10)
    w.store(3, "e", 20)
    w.do(StoreReadiness(ready=False))
    assert w.outcomes(2) == (Outcome.UNAVAILABLE,) * 2
    assert w.outcomes(3) == (Outcome.SHED,)
    assert w.reported() == [2, 3] or w.reported() == [3, 2]
    w.finish("a")
    w.finish("b", UNAVAILABLE)
    assert w.outcomes(1) == (Outcome.LOADED, Outcome.UNAVAILABLE)


def test_every_counter_exists_from_the_start():
    w = World()
    before = set(w.counters)
    w.open()
    w.store(1, "abc")
    w.finish_all()
    w.learn("x", ABSENT)
    w.close()
    assert set(w.counters) == before
