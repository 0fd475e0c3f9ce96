"""Counts and histograms of what the daemon measures: `core.telemetry.Telemetry` in memory.

Owns the numbers behind those metrics that are no counters of the engine. Imports core and
`metric_families`. prometheus_client's own counters are not used: they would write the files of
an inherited PROMETHEUS_MULTIPROC_DIR.

Threading: any thread; one lock around everything.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry_server.core.telemetry import Answer, Checked, Verb
from kvferry_server.core.types import JobKind

from .metric_families import FAMILIES, SECONDS_BUCKETS, Labels

_OPERATIONS = {kind: kind.name.lower() for kind in JobKind}


@dataclass(slots=True)
class Histogram:
    """Numbers of values at or below each bucket's bound but above the one before, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))
    total: float = 0.0

    @property
    def count(self) -> int:
        """All values."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers at one moment, by family and labels; only documented series.

    Args:
        values: of counters and gauges.
        histograms: copies.
    """

    values: dict[tuple[str, Labels], float]
    histograms: dict[tuple[str, Labels], Histogram]


class Recorder:
    """Takes measurements and gives readings.

    Args:
        nixl_handles: how many transfer handles NIXL has now.
    """

    def __init__(self, nixl_handles: Callable[[], int] = int) -> None:
        self._nixl_handles = nixl_handles
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {
            (family.name, labels): 0
            for family in FAMILIES
            if family.kind != "histogram"
            for labels in family.series
        }
        self._histograms = {
            (family.name, labels): Histogram()
            for family in FAMILIES
            if family.kind == "histogram"
            for labels in family.series
        }

    def read(self) -> Reading:
        """All numbers now."""
        with self._lock:
            histograms = {
                key: Histogram(list(each.counts), each.total)
                for key, each in self._histograms.items()
            }
            values = self._values | {("nixl_handles", ()): self._nixl_handles()}
            return Reading(values, histograms)

    def queue_waited(self, kind: JobKind, seconds: float) -> None:
        """See `Telemetry`."""
        self._observe("queue_wait_seconds", (_OPERATIONS[kind],), seconds)

    def transfer_ended(self, kind: JobKind, seconds: float) -> None:
        """See `Telemetry`."""
        self._observe("transfer_duration_seconds", (_OPERATIONS[kind],), seconds)

    def probe_ended(self, seconds: float) -> None:
        """See `Telemetry`."""
        self._observe("probe_duration_seconds", (), seconds)

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        """See `Telemetry`."""
        self._count("rpcs", (method, code))
        self._observe("rpc_duration_seconds", (method,), seconds)

    def lease_lost(self) -> None:
        """See `Telemetry`."""
        self._count("lease_losses", ())

    def requests_ended(self, verb: Verb, answer: Answer, count: int = 1) -> None:
        """See `Telemetry`."""
        self._count("store_requests", (str(verb), str(answer)), count)

    def load_checked(self, result: Checked) -> None:
        """See `Telemetry`."""
        self._count("integrity", (str(result),))

    def credentials_expire(self, unix_seconds: float | None) -> None:
        """See `Telemetry`."""
        with self._lock:
            self._values["credential_expiry_timestamp_seconds", ()] = unix_seconds or 0

    def _count(self, family: str, labels: Labels, count: int = 1) -> None:
        with self._lock:
            self._values[family, labels] += count

    def _observe(self, family: str, labels: Labels, seconds: float) -> None:
        bucket = bisect_left(SECONDS_BUCKETS, seconds)
        with self._lock:
            histogram = self._histograms[family, labels]
            histogram.counts[bucket] += 1
            histogram.total += seconds
