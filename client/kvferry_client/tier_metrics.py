"""The client's counters as the engine's metrics `vllm:kv_offload_kvferry_*`. No vLLM import.

A metric has a fixed set of label values, all of them known from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvferry_client.shared import NOT_SENT_REASONS
from kvferry_client.types import JobKind, Outcome, Presence

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "vllm:kv_offload_kvferry_"


class Metric(NamedTuple):
    """One counter family."""

    documentation: str
    label_names: tuple[str, ...] = ()


COUNTERS: Final[dict[str, Metric]] = {
    "jobs": Metric("Jobs by kind and outcome.", ("kind", "outcome")),
    "chunks": Metric("Chunks by job kind and outcome.", ("kind", "outcome")),
    "bytes": Metric("Bytes moved to or from the object store, by job kind.", ("kind",)),
    "jobs_not_sent": Metric("Jobs that failed without reaching the daemon.", ("reason",)),
    "jobs_lost": Metric("Jobs whose session ended before a result arrived."),
    "lookup_keys": Metric("Looked-up keys by verdict.", ("verdict",)),
    "lookups_expired": Metric("Lookups that reached lookup_timeout_s, and so were misses."),
    "sessions_attached": Metric("Times the region was attached to a daemon."),
    "sessions_ended": Metric("Times a session ended."),
    "calls_failed": Metric("Calls to the daemon that failed and were repeated or given up."),
}
LOOKUP_SECONDS: Final = "lookup_seconds"
LOOKUP_SECONDS_DOCUMENTATION: Final = (
    "Seconds from question to verdict of a lookup, the keys of one request and group."
)
LOOKUP_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
CONFIG_INFO: Final = ("kvferry_client_version", "kvferry_namespace")
ATTACHED: Final = "attached"
ATTACHED_DOCUMENTATION: Final = "1 while the region is attached to a daemon, else 0."


def _series() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (the client's counter, metric, label values)."""
    for kind in JobKind:
        name = kind.name.lower()
        for outcome in Outcome:
            label = outcome.name.lower()
            yield f"{name}_chunks_{label}", "chunks", (name, label)
        for outcome_name in ("succeeded", "failed"):
            yield f"{name}_jobs_{outcome_name}", "jobs", (name, outcome_name)
        yield f"{name}_bytes", "bytes", (name,)
    for reason in NOT_SENT_REASONS:
        yield f"jobs_not_sent_{reason}", "jobs_not_sent", (reason,)
    for presence in Presence:
        label = presence.name.lower()
        yield f"lookup_keys_{label}", "lookup_keys", (label,)
    for name, metric in COUNTERS.items():
        if not metric.label_names:
            yield name, name, ()


SERIES: Final = {counter: (PREFIX + name, labels) for counter, name, labels in _series()}
"""Metric and label values of each of the client's counters that is a metric."""
