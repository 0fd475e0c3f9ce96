"""How many chunks the object store is given: in parallel, and small ones ahead."""

import pytest

from kvferry_server.core.events import Capacity
from kvferry_server.core.places import Places

from .world import LOAD, STORE, World

SMALL = 512 << 10
MANY = " ".join(f"c{at}" for at in range(40))


def world(slot_bytes, *, parallel=4, ahead=4, most=8):
    made = World(max_active_chunks=most, max_queued_store_bytes=1 << 40)
    made.open(slot_bytes=slot_bytes)
    made.do(Capacity(parallel, ahead))
    return made


@pytest.mark.parametrize(
    ("size", "loads"), [(1, 8), (SMALL // 2, 8), (SMALL, 4), (SMALL - 1, 5), (64 << 20, 4)]
)
def test_small_chunks_are_given_ahead_and_large_ones_are_not(size, loads):
    w = world(size)
    w.load(1, MANY)
    assert w.engine.active == {STORE: 0, LOAD: loads}
    w.finish("c0")
    assert w.engine.active == {STORE: 0, LOAD: loads}
    assert w.engine.capacity == 8


def test_small_chunks_are_not_ahead_of_large_ones():
    w = world(1)
    w.open("large", slot_bytes=1 << 20)
    w.load(1, "abcd", session="large")
    w.load(2, MANY)
    assert w.engine.active[LOAD] == 4
    for name in "ab":
        w.finish(name)
    assert w.engine.active[LOAD] == 4, "two large ones are as much as four places may hold"
    w.finish("c")
    assert w.engine.active[LOAD] == 8


@pytest.mark.parametrize(("most", "loads"), [(3, 3), (4, 4), (6, 6), (100, 8)])
def test_the_settings_bound_those_ahead_too(most, loads):
    w = world(1, most=most)
    w.load(1, MANY)
    assert w.engine.active[LOAD] == w.engine.capacity == loads


def test_stores_leave_a_quarter_of_the_places_ahead_too():
    w = world(1)
    w.store(1, MANY)
    assert w.engine.active == {STORE: 6, LOAD: 0}


def test_a_place_is_free_again_once_its_chunk_has_left():
    places = Places(7)
    places.offered(2, 5)
    places.taken(2 * SMALL)
    assert places.now() == 2
    places.left(2 * SMALL)
    assert places.now() == 7
