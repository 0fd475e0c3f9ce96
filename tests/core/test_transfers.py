"""Order, retries, bounds, breakers and outcomes of chunks, through the engine."""

import pytest

from kvferry_server.core.effects import JobFinished, StartTransfer
from kvferry_server.core.events import Capacity
from kvferry_server.core.types import Outcome, TransferStatus

from .world import (
    ABSENT,
    LOAD,
    OK,
    PRESENT,
    STORE,
    UNAVAILABLE,
    World,
    job,
    ref,
    started,
)


def world(**settings):
    made = World(**({"max_active_chunks": 4, "transfer_seconds": 1000.0} | settings))
    made.open()
    return made


def test_a_start_names_everything_that_the_transfer_needs():
    w = world()
    assert w.load(1, "a", 7).one(StartTransfer) == StartTransfer(
        1, "s", LOAD, 7, ref("a"), 1, w.now
    )
    assert w.store(2, "b", 3).one(StartTransfer) == StartTransfer(
        2, "s", STORE, 3, ref("b"), 1, w.now
    )


def test_never_more_active_chunks_than_the_store_runs():
    w = world(max_active_chunks=8)
    w.do(Capacity(3))
    assert w.engine.capacity == 3
    assert started(w.load(1, "abcdef")) == ["a", "b", "c"]
    assert started(w.finish("b")) == ["d"]
    w.do(Capacity(100))
    assert w.engine.capacity == 8
    assert w.engine.active == {STORE: 0, LOAD: 5}
    assert w.engine.queued == {STORE: 0, LOAD: 0}


def test_less_capacity_stops_nothing_but_starts_nothing_either():
    w = world()
    w.load(1, "abcdef")
    w.do(Capacity(1))
    assert [started(w.finish(c)) for c in "abcd"] == [[], [], [], ["e"]]


def test_J11_loads_go_ahead_of_100_queued_stores():
    w = world(max_active_chunks=1)
    w.store(1, " ".join(f"s{at}" for at in range(50)))
    w.submit(STORE, *(job(2 + at, f"t{at} u{at}") for at in range(25)))
    w.load(99, "x", 60)
    assert started(w.finish("s0")) == ["x"]
    w.finish("x")
    assert w.outcomes(99) == (Outcome.LOADED,)
    assert w.engine.queued[STORE] == 98


def test_stores_are_not_starved_by_endless_loads():
    w = world(max_active_chunks=1)
    w.store(1, "ab")
    starts = []
    for at in range(20):
        w.load(10 + at, f"x{at} y{at}", 8 + 2 * at)
    while w.running:
        starts += started(w.finish(next(iter(w.running))))
    assert starts.index("b") <= 8


def test_sessions_take_turns():
    w = world(max_active_chunks=1)
    w.open("t")
    w.load(1, "abc")
    w.load(1, "xyz", session="t")
    order = started(w.log)
    while w.running:
        order += started(w.finish(next(iter(w.running))))
    assert order == ["a", "b", "x", "c", "y", "z"]


def test_a_key_that_is_present_is_not_stored_again():
    w = world()
    w.learn("a", PRESENT)
    done = w.store(1, "ab")
    assert started(done) == ["b"]
    w.finish("b")
    assert w.outcomes(1) == (Outcome.SKIPPED_PRESENT, Outcome.STORED)
    assert w.counters["bytes_store"] == 100
    w.store(2, "b")
    assert w.outcomes(2) == (Outcome.SKIPPED_PRESENT,)


def test_a_key_whose_store_runs_is_not_stored_twice_also_across_sessions():
    w = world(max_active_chunks=1)
    w.open("t")
    w.open("u", space="elsewhere")
    w.store(1, "ab")
    assert w.store(1, "a", session="t").one(JobFinished).result.transferred_bytes == 0
    assert w.outcomes(1, "t") == (Outcome.SKIPPED_IN_FLIGHT,)
    w.store(2, "b", session="t")
    assert w.outcomes(2, "t") == (Outcome.SKIPPED_IN_FLIGHT,)
    w.store(1, "a", session="u")
    assert w.reported("u") == []
    assert w.engine.queued[STORE] == 2


def test_a_key_whose_store_failed_can_be_stored_again():
    w = world(max_active_chunks=1)
    w.store(1, "a")
    w.finish("a", TransferStatus.DENIED)
    assert w.outcomes(1) == (Outcome.DENIED,)
    assert started(w.store(2, "a")) == ["a"]


def test_a_skip_does_not_end_the_dedupe_of_the_running_store():
    w = world()
    w.store(1, "a")
    w.store(2, "a")
    w.store(3, "a")
    assert w.outcomes(3) == (Outcome.SKIPPED_IN_FLIGHT,)


def test_J12_excess_stores_are_shed_at_once_and_counted():
    w = world(max_active_chunks=1, max_queued_store_bytes=100)
    for job_id, name in enumerate("abc", start=1):
        w.store(job_id, name)
    assert w.outcomes(3) == (Outcome.SHED,)
    assert w.reported() == [3]
    assert w.counters["chunks_store_shed"] == 1
    assert w.engine.queued_store_bytes == 100


def test_J12_failed_stores_are_counted_one_by_one():
    w = world(max_active_chunks=10, max_attempts=1, breaker_failures=100)
    w.store(1, "abcdefghij")
    for name in list("abcdefghij"):
        if name in started(w.log):
            w.finish(name, UNAVAILABLE)
    w.finish_all(UNAVAILABLE)
    assert w.counters["chunks_store_unavailable"] == 10
    assert w.counters["chunks_store_stored"] == 0


def test_queued_store_bytes_follow_the_queue():
    w = world(max_active_chunks=1, max_queued_store_bytes=250)
    w.store(1, "abcd")
    assert w.engine.queued_store_bytes == 100
    assert w.engine.queued == {STORE: 1, LOAD: 0}
    w.finish("a", UNAVAILABLE)
    assert w.engine.queued_store_bytes == 100
    w.finish("b")
    w.tick(10)
    assert w.engine.queued_store_bytes == 0
    w.finish("a")
    assert w.outcomes(1) == (Outcome.STORED, Outcome.STORED, Outcome.SHED, Outcome.SHED)


@pytest.mark.parametrize("status", [s for s in TransferStatus if s is not OK])
def test_J06_no_failed_load_counts_as_loaded(status):
    w = world(max_attempts=1)
    w.load(1, "a")
    result = w.finish("a", status).one(JobFinished).result
    assert result.outcomes == (Outcome[status.name],)
    assert result.transferred_bytes == 0
    assert w.counters["chunks_load_loaded"] == w.counters["bytes_load"] == 0


def test_J08_one_missing_key_does_not_change_the_others():
    w = world()
    w.load(1, "abcd")
    w.finish("c", TransferStatus.MISSING)
    assert w.reported() == []
    w.finish("d")
    w.finish("a")
    result = w.finish("b").one(JobFinished).result
    loaded = Outcome.LOADED
    assert result.outcomes == (loaded, loaded, Outcome.MISSING, loaded)
    assert result.transferred_bytes == 300


def test_a_result_says_how_long_the_transfers_took():
    w = world(max_active_chunks=1)
    w.load(1, "a")
    w.load(2, "b", 1)
    w.now += 3
    w.finish("a")
    w.now += 2
    result = w.finish("b").one(JobFinished).result
    assert (result.seq, result.job_id, result.kind, result.transfer_seconds) == (2, 2, LOAD, 2.0)


def test_a_job_without_a_transfer_took_no_time():
    w = World(ready=False)
    w.open()
    assert w.load(1, "a").one(JobFinished).result.transfer_seconds == 0.0


def test_S01_retries_wait_longer_each_time_and_are_bounded():
    w = world(
        backoff_base_seconds=1.0, backoff_cap_seconds=3.0, max_attempts=5, breaker_failures=99
    )
    w.load(1, "a")
    limits = []
    for attempt in range(1, 5):
        w.finish("a", UNAVAILABLE)
        assert not w.running
        due = w.engine.next_wakeup(w.now)
        limits.append(due - w.now)
        w.now = due
        assert w.tick().one(StartTransfer).attempt == attempt + 1
    w.finish("a", UNAVAILABLE)
    assert w.outcomes(1) == (Outcome.UNAVAILABLE,)
    assert w.counters["retries_load"] == 4
    assert all(0 <= wait <= most for wait, most in zip(limits, [1, 2, 3, 3], strict=True))


def backoffs(seed, attempts, **settings):
    w = world(random_seed=seed, max_attempts=9, breaker_failures=99, **settings)
    w.store(1, "a")
    waits = []
    for _ in range(attempts):
        w.finish("a", UNAVAILABLE)
        waits.append(w.engine.next_wakeup(w.now) - w.now)
        w.tick(waits[-1])
    return waits


def test_S01_the_jitter_covers_the_whole_growing_range():
    runs = [backoffs(s, 4, backoff_base_seconds=1.0, backoff_cap_seconds=4.0) for s in range(200)]
    for at, most in enumerate([1.0, 2.0, 4.0, 4.0]):
        waits = [run[at] for run in runs]
        assert 0.9 * most < max(waits) <= most
        assert 0 <= min(waits) < 0.1 * most


def test_a_run_can_be_repeated():
    assert backoffs(7, 3) == backoffs(7, 3) != backoffs(8, 3)


@pytest.mark.parametrize("status", [s for s in TransferStatus if s not in {OK, UNAVAILABLE}])
def test_only_unavailable_is_retried(status):
    w = world()
    w.load(1, "a")
    w.finish("a", status)
    assert w.reported() == [1]
    assert w.counters["retries_load"] == 0


def test_a_retry_keeps_its_slot_and_its_key():
    w = world()
    w.store(1, "a", 5)
    w.finish("a", UNAVAILABLE)
    w.store(2, "a")
    assert w.outcomes(2) == (Outcome.SKIPPED_IN_FLIGHT,)
    again = w.tick(1).one(StartTransfer)
    assert (again.slot, again.ref, again.attempt) == (5, ref("a"), 2)


@pytest.mark.parametrize("status", [TransferStatus.CORRUPT, TransferStatus.WRONG_SIZE])
def test_L01_a_condemned_object_is_absent_until_the_next_store_overwrites_it(status):
    w = world()
    w.learn("a", PRESENT)
    w.load(1, "a")
    w.finish("a", status)
    assert w.ask("a") == [ABSENT]
    w.tick(10)
    assert w.ask("a") == [ABSENT]
    assert started(w.store(2, "a")) == ["a"]
    w.finish("a")
    assert w.outcomes(2) == (Outcome.STORED,)
    assert w.ask("a") == [PRESENT]


def test_a_probe_does_not_revive_a_condemned_object():
    w = world()
    w.load(1, "a")
    _number, _ = w.start_lookup("a")
    w.finish("a", TransferStatus.CORRUPT)
    w.probed(PRESENT)
    assert w.ask("a") == [ABSENT]


def test_L01_after_a_missing_load_the_next_lookup_is_a_miss_without_a_new_load():
    w = world()
    w.store(1, "a")
    w.finish("a")
    assert w.ask("a") == [PRESENT]
    w.load(2, "a")
    w.finish("a", TransferStatus.MISSING)
    assert w.outcomes(2) == (Outcome.MISSING,)
    assert w.ask("a") == [ABSENT]
    assert [e.kind for e in w.log.of(StartTransfer)] == [STORE, LOAD]
    assert not w.probing


@pytest.mark.parametrize("status", [UNAVAILABLE, TransferStatus.DENIED, TransferStatus.INTERNAL])
def test_L03_a_connection_error_does_not_drop_the_hit(status):
    w = world(max_attempts=1)
    w.store(1, "a")
    w.finish("a")
    w.load(2, "a")
    w.finish("a", status)
    assert w.ask("a") == [PRESENT]


def test_J07_a_failed_store_leaves_a_miss():
    w = world(max_attempts=1)
    w.learn("a", ABSENT)
    w.store(1, "a")
    w.finish("a", UNAVAILABLE)
    assert w.ask("a") == [ABSENT]
