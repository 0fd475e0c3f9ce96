"""Past one machine: how much of a bucket's keys an index covers, and the requests that remain.

A daemon's index is least-recently-used and bounded. Which share of lookups it answers is computed
by Che's approximation (Che, Tung, Wang 2002) for objects whose popularity follows Zipf's law, so
that a billion objects need no memory; `simulate` runs the real index on fewer objects, and the two
are shown side by side. Nothing here was measured on more than one machine.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, pairwise

from kvferry_server.core.presence import PresenceTable
from kvferry_server.core.types import EngineSettings, ObjectRef

SKEWS = (0.8, 1.0, 1.2)
INDEX_KEYS = (1_000_000, 10_000_000)
BILLION = 1_000_000_000
SMALL_OBJECTS, SMALL_INDEX = 200_000, (2_000, 20_000)
_BINS_PER_OCTAVE = 8
_BISECTIONS = 80
_WARM_UP, _COUNTED = 3, 5
"""Lookups of a simulation, in multiples of the index."""


def covered(objects: int, index_keys: int, skew: float) -> float:
    """Share of lookups that an index of so many keys answers."""
    if index_keys >= objects:
        return 1.0
    bins = list(_bins(objects, skew))
    total = sum(count * weight for count, weight in bins)
    low, high = 0.0, 1e18
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high) if low else high / 2**10
        held = sum(count * -math.expm1(-weight / total * middle) for count, weight in bins)
        low, high = (middle, high) if held < index_keys else (low, middle)
        low = max(low, 1e-9)
    return sum(
        count * weight / total * -math.expm1(-weight / total * high) for count, weight in bins
    )


def simulate(objects: int, index_keys: int, skew: float) -> float:
    """The same of the real index, fed with random lookups."""
    source = random.Random(0)  # noqa: S311 - a simulation
    cumulative = list(accumulate(rank**-skew for rank in range(1, objects + 1)))
    table = PresenceTable(EngineSettings(max_presence_entries=index_keys))
    hits = 0
    lookups = (_WARM_UP + _COUNTED) * max(index_keys, objects // 10)
    counted = lookups * _COUNTED // (_WARM_UP + _COUNTED)
    for number in range(lookups):
        rank = bisect(cumulative, source.random() * cumulative[-1])
        ref = ObjectRef("space", rank.to_bytes(32, "big"))
        if table.get(ref, 0.0) is None:
            table.stored(ref, 0.0)
        elif number >= lookups - counted:
            hits += 1
    return hits / counted


def table() -> str:
    """Both side by side, then a billion objects; Markdown."""
    lines = [
        "| objects | index, keys | Zipf exponent | answered by the index, computed | simulated |",
        "|---|---|---|---|---|",
    ]
    for skew in SKEWS:
        for keys in SMALL_INDEX:
            found = f"{covered(SMALL_OBJECTS, keys, skew):.1%} | "
            found += f"{simulate(SMALL_OBJECTS, keys, skew):.1%}"
            lines.append(f"| {SMALL_OBJECTS:,} | {keys:,} | {skew:g} | {found} |")
    for skew in SKEWS:
        for keys in INDEX_KEYS:
            found = f"{covered(BILLION, keys, skew):.1%} |"
            lines.append(f"| {BILLION:,} | {keys:,} | {skew:g} | {found} |")
    return "\n".join(lines) + "\n"


def _bins(objects: int, skew: float) -> Iterator[tuple[int, float]]:
    """Ranks in groups of like popularity: how many, and the weight of the middle one."""
    edges = sorted(
        {
            min(objects, math.ceil(2 ** (step / _BINS_PER_OCTAVE)))
            for step in range(_BINS_PER_OCTAVE * (math.ceil(math.log2(objects)) + 1))
        }
        | {1, objects}
    )
    yield 1, 1.0
    for low, high in pairwise(edges):
        yield high - low, math.sqrt((low + 1) * high) ** -skew


if __name__ == "__main__":
    print(table())
