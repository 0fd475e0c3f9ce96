"""Stores beside loads: as many as the loads do not feel, at least one, all if nobody loads."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry_server.core.store_window import StoreWindow

CAPACITY, MOST = 50, 38
SIZE = 1 << 20


def run(window, loads, seconds_of, *, now=0.0, pause=0.01):
    """One load after another beside as many stores as may run; the window after each."""
    seen = []
    for _ in range(loads):
        stores = window.limit(CAPACITY, now)
        window.load_began(now)
        seconds = seconds_of(stores)
        now += seconds
        window.load_ended(SIZE, seconds, (stores, stores), now)
        now += pause
        seen.append(window.limit(CAPACITY, now))
    return seen


@pytest.mark.parametrize(("capacity", "most"), [(1, 1), (2, 1), (4, 3), (8, 6), (50, 38)])
def test_stores_leave_a_quarter_of_the_transfers_to_loads(capacity, most):
    assert StoreWindow().limit(capacity, 0.0) == most


def test_a_store_that_bears_everything_is_used_in_full():
    noise = random.Random(1)
    seen = run(StoreWindow(), 3000, lambda _stores: 0.02 * noise.lognormvariate(0, 0.6))
    assert statistics.mean(seen[500:]) > 0.8 * MOST


def test_a_saturated_store_is_left_to_the_loads():
    noise = random.Random(1)
    seen = run(
        StoreWindow(), 3000, lambda stores: 0.02 * (1 + stores) * noise.lognormvariate(0, 0.3)
    )
    assert statistics.mean(seen[200:]) < 2.5
    assert max(seen[200:]) <= 4


def test_what_failed_often_is_tried_rarely():
    seen = run(StoreWindow(), 4000, lambda stores: 0.02 * max(1, stores) ** 2)
    tries = sum(before == 1 < after for before, after in itertools.pairwise(seen[500:]))
    assert 2 <= tries <= 10


def test_between_the_two_the_window_is_what_the_store_bears():
    noise = random.Random(1)
    seen = run(
        StoreWindow(),
        3000,
        lambda stores: 0.02 * max(1, (1 + stores) / 8) * noise.lognormvariate(0, 0.3),
    )
    assert 5 < statistics.mean(seen[500:]) < 14


def test_it_recovers_when_the_store_does():
    window = StoreWindow()
    run(window, 500, lambda stores: 0.02 * (1 + stores))
    assert run(window, 6000, lambda _stores: 0.02)[-1] == MOST


def test_without_loads_the_window_does_not_hold_and_is_not_forgotten():
    window = StoreWindow()
    run(window, 200, lambda stores: 0.02 * (1 + stores))
    later = 10_000.0
    assert window.limit(CAPACITY, later) == MOST
    window.load_began(later)
    assert window.limit(CAPACITY, later) < 3
    assert window.limit(CAPACITY, later + 100.0) < 3, "a load is still running"
    window.load_failed(later + 100.0)
    assert window.limit(CAPACITY, later + 104.9) < 3
    assert window.limit(CAPACITY, later + 105.0) == MOST


def test_a_burst_of_loads_is_judged_once():
    window = StoreWindow()
    assert run(window, 600, lambda _stores: 0.01)[-1] == MOST
    for _ in range(64):
        window.load_began(20.0)
    for number in range(64):
        window.load_ended(SIZE, 1.0 + number / 100, (2, 2), 21.0 + number / 100)
    assert window.limit(CAPACITY, 22.0) == MOST // 2


def test_stores_left_over_from_a_wider_window_are_not_judged():
    window = StoreWindow()
    run(window, 200, lambda stores: 0.02 * max(1, stores) ** 2)
    patience = window._patience
    for number in range(64):
        window.load_began(100.0 + number)
        window.load_ended(SIZE, 0.5, (MOST, MOST), 100.5 + number)
    assert window._patience == patience


def test_a_load_that_stores_joined_is_neither_calm_nor_busy():
    window = StoreWindow()
    window.load_began(0.0)
    window.load_ended(SIZE, 1.0, (0, 18), 1.0)
    assert not window._calm
    assert not window._busy


def test_what_a_load_takes_is_measured_before_anything_is_compared():
    window = StoreWindow()
    window.load_began(0.0)
    window.load_ended(SIZE, 0.5, (38, 38), 0.5)
    assert window.limit(CAPACITY, 0.5) == 1


def test_loads_that_took_no_time_are_nothing_to_compare_with():
    """Begun and ended within one look at the clock."""
    window = StoreWindow()
    window.load_ended(SIZE, 0.0, (0, 0), 0.0)
    window.load_ended(SIZE, 0.02, (5, 5), 0.02)
    assert window.limit(CAPACITY, 0.02) == 1


def test_loads_of_other_sizes_are_not_compared():
    window = StoreWindow()
    run(window, 20, lambda _stores: 0.01)
    for number in range(400):
        now = 1.0 + number / 10
        stores = window.limit(CAPACITY, now)
        for size, seconds, beside in (
            (1 << 10, 0.001, 0),
            (32 << 20, 0.05, 0),
            (32 << 20, 0.05, stores),
        ):
            window.load_began(now)
            window.load_ended(size, seconds, (beside, beside), now + seconds)
    assert window.limit(CAPACITY, 41.0) == MOST


def test_sizes_are_bounded():
    window = StoreWindow()
    for size in range(1, 1000):
        window.load_ended(size, 0.01, (0, 0), 1.0)
    assert len(window._calm) == 64


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1 << 10, SIZE]),
            st.floats(1e-6, 100),
            st.integers(0, 40),
            st.sampled_from([0.0, 0.01, 10.0]),
            st.integers(1, 60),
        ),
        max_size=300,
    )
)
def test_at_least_one_store_and_room_for_a_load_whatever_happens(loads):
    window, now = StoreWindow(), 0.0
    for size, seconds, stores, pause, capacity in loads:
        window.load_began(now)
        now += seconds
        window.load_ended(size, seconds, (stores, stores), now)
        now += pause
        assert 1 <= window.limit(capacity, now) <= max(1, capacity - 1)
