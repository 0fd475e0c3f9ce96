"""What time does to queued and active chunks, and how the engine asks for ticks."""

from kvferry_server.core.effects import Abort, JobFinished
from kvferry_server.core.events import StoreReadiness
from kvferry_server.core.types import Outcome

from .world import ABSENT, STORE, UNAVAILABLE, World, started


def world(**settings):
    base = {"max_active_chunks": 1, "transfer_seconds": 15.0, "hard_deadline_seconds": 60.0}
    made = World(**(base | settings))
    made.open()
    return made


def test_J03_a_queued_chunk_expires_and_an_active_one_does_not():
    w = world()
    w.load(1, "ab")
    w.load(2, "c", 10)
    w.live(14.5)
    assert w.reported() == []
    w.live(0.5)
    assert w.outcomes(2) == (Outcome.EXPIRED,)
    w.live(20)
    assert w.reported() == [2]
    w.finish("a")
    assert w.outcomes(1) == (Outcome.LOADED, Outcome.EXPIRED)


def test_J04_a_transfer_that_ends_after_its_jobs_deadline_counts_once():
    w = world()
    w.load(1, "ab")
    w.live(30)
    w.poll(seconds=100)
    done = w.finish("a")
    assert done.one(JobFinished).result.outcomes == (Outcome.LOADED, Outcome.EXPIRED)
    w.live(30)
    assert w.reported() == [1]
    w.poll(ack=1, seconds=1)
    w.live(2)
    assert w.log[-1].results == ()


def test_a_chunk_whose_time_is_over_is_not_started_even_without_a_tick():
    w = world()
    w.load(1, "ab")
    w.now += 15
    assert started(w.finish("a")) == []
    assert w.outcomes(1) == (Outcome.LOADED, Outcome.EXPIRED)


def test_no_retry_starts_after_the_deadline():
    w = world(backoff_base_seconds=0.1, max_attempts=99, breaker_failures=99)
    w.store(1, "a")
    w.live(14.999, pace=0.001)
    w.finish("a", UNAVAILABLE)
    while w.running or not w.reported():
        w.tick(0.001)
        if w.running:
            assert w.now < 1015
            w.finish("a", UNAVAILABLE)
    assert w.outcomes(1)[0] in {Outcome.UNAVAILABLE, Outcome.EXPIRED}


def test_a_retry_that_would_come_too_late_is_not_waited_for():
    w = world(backoff_base_seconds=1000.0, backoff_cap_seconds=1000.0)
    w.store(1, "a")
    w.now += 10
    w.finish("a", UNAVAILABLE)
    assert w.outcomes(1) == (Outcome.UNAVAILABLE,)
    assert w.engine.queued[STORE] == 0


def test_a_chunk_that_waits_for_its_retry_expires_with_its_job():
    w = world(backoff_base_seconds=14.0, backoff_cap_seconds=14.0, max_active_chunks=2)
    w.load(1, "ab")
    w.finish("a", UNAVAILABLE)
    assert w.engine.queued_store_bytes == 0
    w.now += 15
    w.tick()
    assert w.reported() == []
    w.finish("b")
    assert w.outcomes(1) == (Outcome.EXPIRED, Outcome.LOADED)


def test_a_stuck_transfer_ends_the_daemon_at_the_hard_deadline():
    w = world()
    w.load(1, "a", 7)
    assert not w.live(60).of(Abort)
    aborts = w.live(1).of(Abort)
    assert aborts
    assert "load of slot 7 has been running for 60 s" in aborts[0].reason
    assert "hard_deadline_seconds" in aborts[0].reason


def test_the_hard_deadline_counts_only_time_in_which_the_loop_was_seen():
    w = world()
    w.load(1, "a")
    w.live(30)
    assert not w.tick(100_000).of(Abort)
    assert w.engine.oldest_active_seconds <= 31
    assert not w.live(28).of(Abort)
    assert w.live(2).of(Abort)


def test_the_age_is_that_of_the_oldest_running_transfer():
    w = world(max_active_chunks=2)
    assert w.engine.oldest_active_seconds == 0
    w.load(1, "a")
    w.live(10)
    w.load(2, "b", 1)
    w.live(5)
    assert w.engine.oldest_active_seconds == 15
    w.finish("a")
    assert w.engine.oldest_active_seconds == 5
    w.finish("b")
    assert w.engine.oldest_active_seconds == 0


def test_a_probe_that_never_ends_ends_the_daemon_at_the_hard_deadline():
    """Its share of max_probing_keys would never come back."""
    w = world()
    w.start_lookup("a")
    assert not w.live(30).of(Abort)
    w.probed(ABSENT)
    w.start_lookup("b")
    w.tick(100_000)
    assert not w.live(58).of(Abort)
    aborts = w.live(3).of(Abort)
    assert "a probe has been running for 60 s" in aborts[0].reason
    assert "hard_deadline_seconds" in aborts[0].reason


def test_each_attempt_has_a_hard_deadline_of_its_own():
    w = world(transfer_seconds=1000.0, backoff_base_seconds=0.001)
    w.load(1, "a")
    w.live(50)
    w.finish("a", UNAVAILABLE)
    assert not w.live(50).of(Abort)
    assert w.running


def test_an_idle_engine_asks_for_no_tick():
    w = World()
    w.open()
    assert w.engine.next_wakeup(w.now) is None
    w.store(1, "a")
    w.finish("a")
    w.tick()
    assert w.engine.next_wakeup(w.now) is None


def test_while_a_transfer_runs_ticks_come_often_enough_to_count_time():
    w = world()
    w.load(1, "a")
    assert w.now < w.engine.next_wakeup(w.now) <= w.now + 1.0


def test_ticks_are_asked_for_at_each_deadline():
    w = world()
    w.do(StoreReadiness(ready=True))
    w.start_lookup("x", seconds=2.5)
    assert w.now < w.engine.next_wakeup(w.now) <= w.now + 1.0  # its probe runs
    w.probed(ABSENT)
    w.poll(seconds=1.5)
    assert w.engine.next_wakeup(w.now) == w.now + 1.5
    w.load(1, "a")
    w.start_lookup("y", seconds=0.3)
    assert w.engine.next_wakeup(w.now) == w.now + 0.3
    w.drain(seconds=0.25)
    assert w.engine.next_wakeup(w.now) == w.now + 0.25


def test_a_finished_jobs_deadline_wakes_once_at_most():
    w = world()
    w.load(1, "a")
    w.load(2, "b", 1)
    w.finish("a")
    w.finish("b")
    due = w.engine.next_wakeup(w.now)
    assert due in {None, w.now + 15}
    w.tick(15)
    assert w.engine.next_wakeup(w.now) is None


def test_a_wakeup_is_never_in_the_past():
    w = world()
    w.load(1, "ab")
    w.now += 100
    assert w.engine.next_wakeup(w.now) == w.now
    w.tick()
    assert w.engine.next_wakeup(w.now) > w.now
