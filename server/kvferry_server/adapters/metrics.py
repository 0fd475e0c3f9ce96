"""The daemon's state as Prometheus text. The sole importer of prometheus_client.

Owns a registry of its own with one collector that takes a reading when scraped. Every series of
`metric_families` is always there, and no other is, but for those of prometheus_client's process
collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .metric_families import FAMILIES, PREFIX, SECONDS_BUCKETS, Family, Labels
from .telemetry import Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The daemon at one moment.

    Args:
        version: of the daemon.
        values: of counters and gauges, by family and labels.
        histograms: by family and labels.
    """

    version: str
    values: Mapping[tuple[str, Labels], float]
    histograms: Mapping[tuple[str, Labels], Histogram]


class Metrics:
    """Renders snapshots.

    Args:
        read: takes a snapshot; called on the thread that renders.
    """

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_SnapshotCollector(read))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Everything in the Prometheus text format 0.0.4."""
        return generate_latest(self._registry)


class _SnapshotCollector(Collector):
    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        snapshot = self._read()
        for family in FAMILIES:
            yield _metric(family, snapshot)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry need not ask."""
        return iter(())


def _metric(family: Family, snapshot: Snapshot) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(PREFIX + family.name, family.help, labels=family.labels)
        for labels in family.series:
            numbers = snapshot.histograms[family.name, labels]
            histogram.add_metric(labels, _buckets(numbers), numbers.total)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(PREFIX + family.name, family.help, labels=family.labels)
    if family.name == "build_info":
        metric.add_metric([snapshot.version], 1)
    else:
        for labels in family.series:
            metric.add_metric(labels, snapshot.values[family.name, labels])
    return metric


def _buckets(numbers: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, SECONDS_BUCKETS), "+Inf"]
    return list(zip(bounds, accumulate(numbers.counts), strict=True))
