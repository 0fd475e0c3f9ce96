"""The client's counters as the engine's metrics `vllm:kv_offload_kvferry_*`. No vLLM import.

A metric has a fixed set of label values, all of them known from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvferry_client.shared import NOT_SENT_REASONS
from kvferry_client.types import JobKind, Outcome, Presence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    "lookups_answered": Metric("Lookups of one request and group that got their verdicts."),
    "lookup_seconds": Metric("Seconds that those lookups took from question to verdict, in all."),
    "lookups_expired": Metric("Lookups that reached lookup_timeout_s, and so were misses."),
    "sessions_attached": Metric("Times the region was attached to a daemon."),
    "sessions_ended": Metric("Times a session ended."),
    "calls_failed": Metric("Calls to the daemon that failed and were repeated or given up."),
}
CONFIG_INFO: Final = ("kvferry_client_version", "kvferry_namespace")
ATTACHED: Final = "attached"
ATTACHED_DOCUMENTATION: Final = "1 while the region is attached to a daemon, else 0."


def samples(counters: Mapping[str, float]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield (metric, label values, total) for every series."""
    for kind in JobKind:
        name = kind.name.lower()
        for outcome in Outcome:
            label = outcome.name.lower()
            yield "chunks", (name, label), counters[f"{name}_chunks_{label}"]
        for outcome_name in ("succeeded", "failed"):
            yield "jobs", (name, outcome_name), counters[f"{name}_jobs_{outcome_name}"]
        yield "bytes", (name,), counters[f"{name}_bytes"]
    for reason in NOT_SENT_REASONS:
        yield "jobs_not_sent", (reason,), counters[f"jobs_not_sent_{reason}"]
    for presence in Presence:
        label = presence.name.lower()
        yield "lookup_keys", (label,), counters[f"lookup_keys_{label}"]
    for name, metric in COUNTERS.items():
        if not metric.label_names:
            yield name, (), counters[name]
