"""The statistics of the benches."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry_server.cli.pairs import Relation, Verdict, estimate, ratios

FIGURES = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


@settings(deadline=None, max_examples=20)
@given(FIGURES)
def test_the_interval_holds_the_median_and_lies_within_the_figures(values):
    found = estimate(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.median == statistics.median(values)
    assert estimate(values) == found


@settings(deadline=None, max_examples=20)
@given(FIGURES, st.floats(0.01, 100))
def test_a_verdict_needs_the_whole_interval(values, bound):
    found = estimate(values)
    at_most = found.judge(Relation.AT_MOST, bound)
    assert (at_most is Verdict.MET) == (found.high <= bound)
    assert (at_most is Verdict.MISSED) == (found.low > bound)
    at_least = found.judge(Relation.AT_LEAST, bound)
    assert (at_least is Verdict.MET) == (found.low >= bound)
    assert (at_least is Verdict.MISSED) == (found.high < bound)


def test_the_interval_of_a_known_sample():
    found = estimate([float(each) for each in range(1, 11)])
    assert (found.median, found.low, found.high) == (5.5, 3.0, 8.0)


def test_ratios_go_pair_by_pair():
    assert ratios([1.0, 6.0], [2.0, 3.0]) == [0.5, 2.0]
    with pytest.raises(ValueError, match="a ratio to nothing"):
        ratios([1.0], [0.0])
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_nothing_measured_is_no_estimate():
    with pytest.raises(ValueError, match="nothing was measured"):
        estimate([])
