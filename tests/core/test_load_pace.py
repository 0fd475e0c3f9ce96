"""Loads that are slower than computing are not begun; now and then they are measured again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.load_pace import LoadPace

from .world import PRESENT, UNKNOWN, World

MIB = 1 << 20


def load(pace, count, seconds, *, now, size=MIB, idle=0.0):
    for _ in range(count):
        pace.began(now)
        now += seconds
        pace.ended(size, now)
        now += idle
    return now


def test_slow_loads_close_for_ten_seconds_then_are_measured_again():
    pace = LoadPace(100 * MIB)
    now = load(pace, 15, 0.1, now=100.0)
    assert pace.allows(now)
    now = load(pace, 1, 0.1, now=now)
    assert not pace.allows(now)
    assert not pace.allows(now + 9.9)
    assert pace.allows(now + 10.0)
    now = load(pace, 16, 0.001, now=now + 10.0)
    assert pace.allows(now)


def test_loads_side_by_side_count_together():
    pace, now = LoadPace(100 * MIB), 5.0
    for _ in range(16):
        pace.began(now)
    for number in range(16):
        pace.ended(MIB, now + 0.1 + number / 1000)
    assert pace.allows(now + 0.2)


def test_time_without_loads_does_not_count():
    pace = LoadPace(100 * MIB)
    assert pace.allows(load(pace, 16, 0.009, now=1.0, idle=60.0))


def test_failed_loads_count_beside_others_only():
    pace = LoadPace(100 * MIB)
    now = load(pace, 100, 30.0, now=1.0, size=0)
    now = load(pace, 15, 0.009, now=now)
    assert pace.allows(load(pace, 1, 0.009, now=now))
    now = load(pace, 15, 0.009, now=now)
    now = load(pace, 1, 1.0, now=now, size=0)
    assert not pace.allows(load(pace, 1, 0.009, now=now))


def test_what_ends_while_lookups_are_closed_is_not_measured():
    pace = LoadPace(100 * MIB)
    now = load(pace, 16, 0.1, now=1.0)
    now = load(pace, 8, 0.5, now=now)
    assert not pace.allows(now)
    now = load(pace, 16, 0.001, now=now + 10.0)
    assert pace.allows(now)


@pytest.mark.parametrize("seconds", [0.0001, 1000.0])
def test_without_a_least_rate_everything_is_worth_it(seconds):
    pace = LoadPace(0.0)
    assert pace.allows(load(pace, 64, seconds, now=1.0))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0, MIB]), st.floats(0, 5))))
def test_it_opens_again_whatever_happens(steps):
    pace, now, running = LoadPace(1e9), 1.0, 0
    for begins, size, pause in steps:
        if begins or not running:
            pace.began(now)
            running += 1
        else:
            pace.ended(size, now)
            running -= 1
        now += pause
    assert pace.allows(now + 10.0)


def test_what_would_load_too_slowly_is_not_found_for_a_while():
    w = World(min_load_bytes_per_second=1e9)
    w.open()
    w.learn("a", PRESENT)
    names = [f"c{at:02}" for at in range(16)]
    w.load(1, " ".join(names))
    while w.running:
        w.now += 1.0
        w.finish(next(iter(w.running)))
    assert w.ask("a") == [UNKNOWN]
    assert w.counters["lookups_too_slow"] == 1
    w.tick(10.0)
    assert w.ask("a") == [PRESENT]
    assert w.counters["lookups_too_slow"] == 1
