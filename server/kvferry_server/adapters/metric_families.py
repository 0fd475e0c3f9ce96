"""Every metric of the daemon: name, kind, help, labels and all series it ever has.

Owns the table that `/metrics` shows and docs/metrics.md is made from. Imports core and the
contract's messages. Series are fixed: a label's value is never a key, an id, a URL or a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from kvferry.v1 import admin_pb2, offload_pb2
from kvferry_server.core.engine import VERDICTS, refusals_of
from kvferry_server.core.states import outcomes_of
from kvferry_server.core.telemetry import Answer, Checked, Verb
from kvferry_server.core.types import JobKind

PREFIX = "kvferry_"
SECONDS_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of every histogram, without the last one, which is infinite."""

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]

OPERATIONS = tuple(kind.name.lower() for kind in JobKind)
BREAKERS = ("read", "write")
BREAKER_STATES = ("closed", "open", "half_open")
METHODS = tuple(
    method.name
    for file, service in (
        (offload_pb2.DESCRIPTOR, "OffloadService"),
        (admin_pb2.DESCRIPTOR, "AdminService"),
    )
    for method in file.services_by_name[service].methods
)
CODES = (
    "OK",
    "CANCELLED",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "INTERNAL",
)
"""Every status with which a call of kvferry's services can end."""


@dataclass(frozen=True, slots=True)
class Family:
    """Series of one name.

    Args:
        name: without the prefix; a counter's without `_total`.
        kind: what its values are.
        help: what it says, with its unit.
        labels: names of its labels.
        series: every combination of label values.
        flat: of a counter of the engine: its name there, with the label values' places.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series: tuple[Labels, ...] = ((),)
    flat: str = ""

    @property
    def full_name(self) -> str:
        """As Prometheus knows it."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    def flat_name(self, labels: Labels) -> str:
        """The engine's counter behind a series."""
        return self.flat.format(*labels)


def _each(*values: tuple[str, ...]) -> tuple[Labels, ...]:
    return tuple(product(*values))


_OUTCOMES = tuple(
    (kind.name.lower(), outcome.name.lower()) for kind in JobKind for outcome in outcomes_of(kind)
)
_REFUSALS = tuple(
    (kind.name.lower(), str(reason)) for kind in JobKind for reason in refusals_of(kind)
)
_VERDICTS = tuple((verdict.name.lower(), str(source)) for verdict, source in VERDICTS)

FAMILIES = (
    # Work
    Family(
        "chunks",
        "counter",
        "Chunks that ended, by outcome.",
        ("operation", "outcome"),
        _OUTCOMES,
        flat="chunks_{}_{}",
    ),
    Family(
        "jobs",
        "counter",
        "Jobs that ended.",
        ("operation",),
        _each(OPERATIONS),
        flat="jobs_{}",
    ),
    Family(
        "transferred_bytes",
        "counter",
        "Payload bytes of the chunks that were stored or loaded.",
        ("operation",),
        _each(OPERATIONS),
        flat="bytes_{}",
    ),
    Family(
        "queue_wait_seconds",
        "histogram",
        "From a job's acceptance to the start of a chunk's first attempt.",
        ("operation",),
        _each(OPERATIONS),
    ),
    Family(
        "transfer_duration_seconds",
        "histogram",
        "One attempt to move one chunk, verification included, whatever its outcome.",
        ("operation",),
        _each(OPERATIONS),
    ),
    Family(
        "retries",
        "counter",
        "Further attempts to move a chunk, by why the one before failed.",
        ("operation", "reason"),
        _each(OPERATIONS, ("unavailable",)),
        flat="retries_{}",
    ),
    Family(
        "refused_chunks",
        "counter",
        "Chunks that ended without a transfer, by why. Stores end as shed; loads as shed if "
        "paused, else as unavailable. min_offers, put_rate and byte_rate are the operator's own "
        "admission settings.",
        ("operation", "reason"),
        _REFUSALS,
        flat="refused_{}_{}",
    ),
    Family(
        "queued_chunks",
        "gauge",
        "Chunks that wait for a transfer.",
        ("operation",),
        _each(OPERATIONS),
    ),
    Family("queued_store_bytes", "gauge", "Payload bytes of the chunks queued to be stored."),
    Family("active_chunks", "gauge", "Chunks in transfer.", ("operation",), _each(OPERATIONS)),
    Family(
        "nixl_handles",
        "gauge",
        "NIXL's transfer handles that are not released. Between its transfers a chunk has none, a "
        "preflight has one.",
    ),
    Family("max_active_chunks", "gauge", "Chunks that can be in transfer at once."),
    Family(
        "oldest_active_seconds",
        "gauge",
        "Age of the oldest running transfer; at timeouts.hard_deadline_seconds the daemon ends.",
    ),
    # Lookups
    Family(
        "lookup_verdicts",
        "counter",
        "Keys that lookups answered, by verdict and by what it rests on: the existence index, a "
        "probe of the store, or a cutoff (deadline, end of a prefix, bound, breaker, not ready).",
        ("verdict", "source"),
        _VERDICTS,
        flat="verdicts_{}_{}",
    ),
    Family(
        "lookups_expired",
        "counter",
        "Lookups that were answered at their deadline.",
        flat="lookups_expired",
    ),
    Family(
        "lookups_too_slow",
        "counter",
        "Lookups left unanswered because loads were slower than "
        "admission.min_load_bytes_per_second.",
        flat="lookups_too_slow",
    ),
    Family("probed_keys", "counter", "Keys that the store was asked about.", flat="probed_keys"),
    Family("probe_errors", "counter", "Keys whose probe failed at the store.", flat="probe_errors"),
    Family("probe_duration_seconds", "histogram", "One probe of at most 32 keys."),
    Family("open_lookups", "gauge", "Lookups that are not yet answered."),
    Family("index_entries", "gauge", "Keys in the existence index."),
    # Store
    Family(
        "store_requests",
        "counter",
        "Requests to the object store by verb and answer; what it charges for. Without those of "
        "the preflight and of the diagnosis after a failure.",
        ("verb", "outcome"),
        _each(tuple(map(str, Verb)), tuple(map(str, Answer))),
    ),
    Family(
        "integrity",
        "counter",
        "Loads by what their verification came to: length and checksum right, only the length "
        "known, none known though integrity.verify requires one, wrong checksum, wrong size.",
        ("result",),
        _each(tuple(map(str, Checked))),
    ),
    Family("store_ready", "gauge", "1 if a preflight of the object store has passed."),
    Family(
        "breaker_state",
        "gauge",
        "1 for the state that a breaker is in. read: loads and lookups; write: stores.",
        ("breaker", "state"),
        _each(BREAKERS, BREAKER_STATES),
    ),
    Family(
        "paused",
        "gauge",
        "1 if an operator has paused the operation (`kvferry pause`).",
        ("operation",),
        _each(OPERATIONS),
    ),
    Family(
        "credential_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the store's credentials in use expire; 0 if they don't or none are.",
    ),
    # Engines
    Family("sessions", "gauge", "Attached regions, those of ended engines included."),
    Family("sessions_opened", "counter", "Regions attached.", flat="sessions_opened"),
    Family("sessions_closed", "counter", "Regions unmapped.", flat="sessions_closed"),
    Family("region_bytes", "gauge", "Mapped bytes of all regions."),
    Family(
        "dead_engine_bytes",
        "gauge",
        "Mapped bytes of regions whose engine is gone, while running transfers are awaited.",
    ),
    Family(
        "dead_engine_age_seconds",
        "gauge",
        "How long the oldest of those regions has been held; 0 if there is none.",
    ),
    Family(
        "lease_losses",
        "counter",
        "Engines that went without detaching: they died or were killed.",
    ),
    # Calls
    Family(
        "rpcs",
        "counter",
        "Calls that ended, by method and gRPC code. Engines attach and detach without a call.",
        ("method", "code"),
        _each(METHODS, CODES),
    ),
    Family(
        "rpc_duration_seconds",
        "histogram",
        "Calls by method. Poll, Drain and DetachRegion wait on purpose.",
        ("method",),
        _each(METHODS),
    ),
    # Process
    Family("build_info", "gauge", "Always 1.", ("version",), series=()),
    Family("start_time_seconds", "gauge", "Unix time of the daemon's start."),
)


def engine_counters() -> Iterator[tuple[Family, Labels, str]]:
    """Each series that is a counter of the engine, with that counter's name."""
    for family in FAMILIES:
        if family.flat:
            for labels in family.series:
                yield family, labels, family.flat_name(labels)
