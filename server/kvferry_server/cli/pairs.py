"""Ratios of two things that were measured in turn: median, bootstrap interval, verdict.

Owns the statistics of `kvferry bench` and of bench/. Imports the standard library only.
"""

from __future__ import annotations

import operator
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique

RESAMPLES = 10_000
CONFIDENCE = 0.95


@unique
class Verdict(StrEnum):
    """What a measurement says of a target."""

    MET = "MET"
    MISSED = "MISSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    """The interval lies on both sides of the target."""


@unique
class Relation(StrEnum):
    """Which side of its bound a target wants."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its percentile bootstrap interval (Efron 1979), 95 %."""

    median: float
    low: float
    high: float
    count: int

    def judge(self, relation: Relation, bound: float) -> Verdict:
        """Compare with a target: MET or MISSED only if the whole interval agrees."""
        holds = operator.le if relation is Relation.AT_MOST else operator.ge
        sides = {holds(self.low, bound), holds(self.high, bound)}
        if len(sides) > 1:
            return Verdict.INCONCLUSIVE
        return Verdict.MET if sides.pop() else Verdict.MISSED


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the median of at least one value; the same values give the same interval.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("nothing was measured")
    source = random.Random(0)  # noqa: S311 - resampling
    medians = sorted(
        statistics.median(source.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Estimate(statistics.median(values), medians[tail], medians[-1 - tail], len(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours by theirs, pair by pair.

    Raises:
        ValueError: the counts differ, or one of theirs is not above zero.
    """
    if any(value <= 0 for value in theirs):
        raise ValueError("a ratio to nothing: what was compared with took no time or moved nothing")
    return [a / b for a, b in zip(ours, theirs, strict=True)]
