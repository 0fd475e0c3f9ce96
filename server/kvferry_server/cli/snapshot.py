"""The daemon at one moment, as its metrics show it: the engine's state and what was measured.

Imports the metrics adapters and the contract's messages.
"""

from __future__ import annotations

from kvferry.v1 import admin_pb2
from kvferry_server.adapters.metric_families import BREAKER_STATES, Labels, engine_counters
from kvferry_server.adapters.metrics import Snapshot
from kvferry_server.adapters.telemetry import Reading

_STATES = {
    admin_pb2.BREAKER_STATE_CLOSED: "closed",
    admin_pb2.BREAKER_STATE_OPEN: "open",
    admin_pb2.BREAKER_STATE_HALF_OPEN: "half_open",
}


def take_snapshot(info: admin_pb2.GetServerInfoResponse, measured: Reading) -> Snapshot:
    """Put both together."""
    counters = {
        (family.name, labels): float(info.counters[name])
        for family, labels, name in engine_counters()
    }
    values = measured.values | counters | _gauges(info) | _breakers(info)
    return Snapshot(info.version, values, measured.histograms)


def _gauges(info: admin_pb2.GetServerInfoResponse) -> dict[tuple[str, Labels], float]:
    return {
        ("queued_chunks", ("store",)): info.queued_store_chunks,
        ("queued_chunks", ("load",)): info.queued_load_chunks,
        ("queued_store_bytes", ()): info.queued_store_bytes,
        ("active_chunks", ("store",)): info.active_store_chunks,
        ("active_chunks", ("load",)): info.active_load_chunks,
        ("max_active_chunks", ()): info.store.max_active_chunks,
        ("oldest_active_seconds", ()): info.oldest_active.ToNanoseconds() / 1e9,
        ("open_lookups", ()): info.open_lookups,
        ("index_entries", ()): info.index_entries,
        ("store_ready", ()): info.store.ready,
        ("paused", ("store",)): info.stores_paused,
        ("paused", ("load",)): info.loads_paused,
        ("sessions", ()): info.sessions,
        ("region_bytes", ()): info.region_bytes,
        ("dead_engine_bytes", ()): info.dead_engine_bytes,
        ("dead_engine_age_seconds", ()): info.dead_engine_age.ToNanoseconds() / 1e9,
        ("start_time_seconds", ()): info.start_time.ToNanoseconds() / 1e9,
    }


def _breakers(info: admin_pb2.GetServerInfoResponse) -> dict[tuple[str, Labels], float]:
    breakers = (("read", info.store.read_breaker), ("write", info.store.write_breaker))
    return {
        ("breaker_state", (name, state)): _STATES.get(found) == state
        for name, found in breakers
        for state in BREAKER_STATES
    }
