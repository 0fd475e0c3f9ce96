"""Hostile sequences: what the engine holds stays in proportion to what is unfinished."""

import importlib
import pkgutil

import pytest

import kvferry_server.core
from kvferry_server.core.effects import LookupReply
from kvferry_server.core.errors import KvferryError
from kvferry_server.core.events import CancelLookup, SetPaused, StoreReadiness
from kvferry_server.core.queues import PRUNE_SLACK
from kvferry_server.core.types import Outcome

from .world import LOAD, PRESENT, STORE, UNAVAILABLE, UNKNOWN, World, job, snapshot

ROUNDS = 1300


def grows_no_more(world, hostile):
    """The largest state of the second half is about that of the first; pruning is a saw-tooth."""
    peaks = []
    for half in range(2):
        sizes = []
        for at in range(half * ROUNDS, (half + 1) * ROUNDS):
            hostile(at)
            if at % 100 == 0:
                sizes.append(len(snapshot(world.engine)))
        peaks.append(max(sizes))
    return peaks[1] < 1.2 * peaks[0]


def blocked(**settings):
    """One transfer runs for ever and takes the only place."""
    world = World(**({"max_active_chunks": 1} | settings))
    world.open()
    world.open("other")
    world.load(1, "blocker", session="other")
    return world


@pytest.mark.parametrize("kind", [STORE, LOAD])
def test_submit_and_drain_in_a_loop_while_capacity_is_blocked(kind):
    w = blocked()
    w.submit(kind, job(2, "waits ", 40), session="other")

    def hostile(at):
        w.submit(kind, job(at + 1, f"k{at} "))
        w.drain()
        w.poll(ack=at + 1)

    assert grows_no_more(w, hostile)
    held = len(w.engine._transfers._queue.kinds[kind])
    assert held <= 2 * w.engine.queued[kind] + PRUNE_SLACK
    assert len(w.engine._transfers._by_deadline) <= 2 * 2 + PRUNE_SLACK


def test_jobs_that_are_shed_at_once_leave_nothing_behind():
    w = blocked()
    w.load(2, "waits ", 40, session="other")
    w.do(SetPaused(stores=True))

    def hostile(at):
        w.store(at + 1, f"k{at} ")
        w.poll(ack=at + 1)

    assert grows_no_more(w, hostile)


def test_retries_and_cancels_in_a_loop():
    w = World(max_active_chunks=2, breaker_failures=10**9, backoff_base_seconds=1000.0)
    w.open()

    def hostile(at):
        w.load(at + 1, f"k{at} ")
        w.finish(f"k{at}", UNAVAILABLE)
        w.drain()
        w.poll(ack=at + 1)

    assert grows_no_more(w, hostile)


def test_many_short_lookups_while_probes_hang():
    w = World(max_probing_keys=4)
    w.open()
    w.start_lookup("abcd", prefix=False, seconds=9999)

    def hostile(at):
        number, _ = w.start_lookup("abcd", f"x{at} y{at} ", prefix=False, seconds=0.1)
        if at % 2:
            w.do(CancelLookup(number))
        else:
            w.tick(0.1)

    assert grows_no_more(w, hostile)
    assert len(w.engine._lookups._unsent) == 0
    assert w.engine.open_lookups == 1
    assert [len(p.waiters) for p in w.engine._lookups._sent.values()] == [1] * 4


def test_what_waits_for_a_probe_is_bounded_and_the_rest_is_unknown():
    w = World(max_probing_keys=1, probe_batch=1)
    w.open()
    w.start_lookup("x")
    ended = [
        w.start_lookup(f"a{at} b{at}", prefix=False, seconds=9999)[1].of(LookupReply)
        for at in range(515)
    ]
    assert len(w.engine._lookups._unsent) == 1024
    assert [reply.verdicts for [reply] in ended[512:]] == [((UNKNOWN, UNKNOWN),)] * 3
    assert not any(ended[:512])
    while w.probing:
        w.probed(PRESENT)
    assert w.engine.open_lookups == 0


def test_the_presence_table_keeps_its_bound():
    w = World(max_presence_entries=10)
    w.open()
    for at in range(100):
        w.store(at + 1, f"k{at} ")
        w.finish(f"k{at}")
    assert w.engine.presence_entries == 10


def test_sparse_job_ids_end_in_a_refusal_with_bounded_state():
    w = World(max_open_jobs=50)
    w.open()
    refused = None
    for at in range(200):
        try:
            w.store(1 + 2 * at, f"k{at} ")
        except KvferryError as error:
            refused = error
            break
        w.finish_all()
        w.poll(ack=at + 1)
    assert refused is not None
    assert refused.reason == "SPARSE_JOB_IDS"
    assert len(w.engine._sessions["s"].seen) <= 51


def test_unacknowledged_results_are_bounded():
    w = World(ready=False, max_open_jobs=50)
    w.open()
    w.submit(STORE, *(job(n, "a") for n in range(1, 51)))
    with pytest.raises(KvferryError, match="max_open_jobs is 50"):
        w.store(51, "a")
    assert len(w.engine._sessions["s"].results) == 50


def test_queued_store_bytes_stay_bounded_through_retries():
    w = World(
        max_active_chunks=4,
        max_queued_store_bytes=300,
        breaker_failures=10**9,
        max_attempts=1000,
        backoff_base_seconds=0.5,
    )
    w.open()
    for at in range(300):
        w.store(at + 1, f"k{at} ")
        for number in list(w.running):
            w.finish(number, UNAVAILABLE)
        assert w.engine.queued_store_bytes <= 300 + 4 * 100
        w.tick(0.1)
    assert w.counters["chunks_store_shed"] > 0


def test_sessions_that_come_and_go_leave_nothing():
    w = World()

    def hostile(at):
        w.open(f"s{at}")
        w.load(1, "abc", session=f"s{at}")
        w.poll(seconds=10, session=f"s{at}")
        w.start_lookup("abc", session=f"s{at}", seconds=0.1)
        w.close(f"s{at}")
        w.finish_all()
        w.tick(0.1)
        if w.probing:
            w.probed(UNKNOWN)

    assert grows_no_more(w, hostile)
    assert w.engine.sessions() == []


def test_a_store_that_flaps_leaves_nothing():
    w = World(max_active_chunks=1)
    w.open()

    def hostile(at):
        w.load(at + 1, f"k{at} x{at}")
        w.do(StoreReadiness(ready=at % 2 == 0))
        w.finish_all()
        w.poll(ack=at + 1)
        w.do(StoreReadiness(ready=True))

    assert grows_no_more(w, hostile)
    assert w.outcomes(2) == (Outcome.LOADED, Outcome.UNAVAILABLE)


def test_every_module_of_the_core_can_be_imported_alone_and_says_what_it_owns():
    for module in pkgutil.iter_modules(kvferry_server.core.__path__, "kvferry_server.core."):
        assert importlib.import_module(module.name).__doc__
