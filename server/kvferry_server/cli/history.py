"""The last minutes of a daemon, for the sparklines of its status page.

Owns a ring of samples of a few totals, and the rates between them. Reads no clock; imports the
metrics adapter.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from kvferry_server.adapters.metrics import Snapshot

SAMPLE_SECONDS = 5.0
SAMPLES = 120
WINDOW_SECONDS = SAMPLE_SECONDS * SAMPLES
_VERDICT_SOURCES = ("index", "probe")


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals since the start at one moment of a monotonic clock."""

    at: float
    stored_bytes: float
    loaded_bytes: float
    load_count: int
    load_seconds: float
    present: float
    absent: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two samples.

    Args:
        at: monotonic seconds of the later one.
        stored: bytes per second into the object store.
        loaded: bytes per second out of it.
        load_seconds: mean duration of a load attempt; None if there was none.
        hit_ratio: share of PRESENT among the lookups' answers; None if there was no answer.
    """

    at: float
    stored: float
    loaded: float
    load_seconds: float | None
    hit_ratio: float | None


def sample(snapshot: Snapshot, at: float) -> Sample:
    """The totals that the history needs."""
    values = snapshot.values
    loads = snapshot.histograms["transfer_duration_seconds", ("load",)]
    present, absent = (
        sum(values["lookup_verdicts", (verdict, source)] for source in _VERDICT_SOURCES)
        for verdict in ("present", "absent")
    )
    return Sample(
        at=at,
        stored_bytes=values["transferred_bytes", ("store",)],
        loaded_bytes=values["transferred_bytes", ("load",)],
        load_count=loads.count,
        load_seconds=loads.total,
        present=present,
        absent=absent,
    )


class History:
    """Samples of the last `WINDOW_SECONDS`. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=SAMPLES + 1)

    def add(self, new: Sample) -> None:
        """Remember a sample, taken `SAMPLE_SECONDS` after the one before."""
        with self._lock:
            self._samples.append(new)

    def rates(self, now: Sample) -> list[Rates]:
        """From sample to sample, oldest first; the last one reaches up to now."""
        with self._lock:
            samples = list(self._samples)
        while samples and now.at - samples[-1].at < SAMPLE_SECONDS / 2:
            samples.pop()
        recent = [each for each in samples if now.at - each.at <= WINDOW_SECONDS + SAMPLE_SECONDS]
        return [_between(one, other) for one, other in pairwise([*recent, now])]


def _between(one: Sample, other: Sample) -> Rates:
    seconds = other.at - one.at
    loads = other.load_count - one.load_count
    answers = other.present - one.present + other.absent - one.absent
    return Rates(
        at=other.at,
        stored=(other.stored_bytes - one.stored_bytes) / seconds,
        loaded=(other.loaded_bytes - one.loaded_bytes) / seconds,
        load_seconds=(other.load_seconds - one.load_seconds) / loads if loads else None,
        hit_ratio=(other.present - one.present) / answers if answers else None,
    )
