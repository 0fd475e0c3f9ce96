"""The daemon's state as Prometheus text. The sole importer of prometheus_client.

Owns a registry of its own with one collector that reads a snapshot when scraped. Nothing is
counted here, so an inherited PROMETHEUS_MULTIPROC_DIR has no effect, and the set of series is that
of the snapshot: it does not grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_GAUGES = {
    "sessions": "Attached regions.",
    "queued_store_chunks": "Chunks queued to be stored.",
    "queued_load_chunks": "Chunks queued to be loaded.",
    "active_chunks": "Chunks in transfer.",
    "max_active_chunks": "Chunks that the object store can run at once.",
    "store_ready": "1 if a preflight of the object store has passed.",
    "read_breaker": "Breaker of loads and lookups: 1 closed, 2 open, 3 half-open.",
    "write_breaker": "Breaker of stores: 1 closed, 2 open, 3 half-open.",
    "stores_paused": "1 if an operator has paused stores.",
    "loads_paused": "1 if an operator has paused loads.",
    "start_time_seconds": "Unix time of the daemon's start.",
}
"""Every gauge by name, without the prefix."""

_COUNTERS = (
    ("chunks_", "Chunks that ended this way."),
    ("jobs_", "Jobs that ended."),
    ("bytes_", "Payload bytes moved by successful chunks."),
    ("retries_", "Further attempts to move a chunk."),
    ("verdicts_", "Keys that lookups answered this way."),
    ("lookups_expired", "Lookups that were answered at their deadline."),
    ("probed_keys", "Keys that the object store was asked about."),
    ("probe_errors", "Questions to the object store that failed."),
    ("sessions_", "Regions attached or detached."),
)
"""What counters count, by the start of their names."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The daemon at one moment.

    Args:
        version: of the daemon.
        counters: totals since the start, by name without prefix.
        gauges: values now, by the names above.
    """

    version: str
    counters: Mapping[str, int]
    gauges: Mapping[str, float]


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
        for name, value in sorted(snapshot.counters.items()):
            yield CounterMetricFamily(f"kvferry_{name}", _help(name), value=value)
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"kvferry_{name}", text, value=snapshot.gauges[name])
        build = GaugeMetricFamily("kvferry_build_info", "Always 1.", labels=["version"])
        build.add_metric([snapshot.version], 1)
        yield build

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known when a snapshot is."""
        return iter(())


def _help(name: str) -> str:
    return next((text for start, text in _COUNTERS if name.startswith(start)), "Events.")
