"""Writes deploy/grafana/kvferry.json, Grafana's dashboard, from the table below.

`--check` writes nothing and ends with 1 if the file is not what the table gives. Imports the
standard library.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "kvferry.json"
COLUMNS = 3
WIDTH, HEIGHT = 24 // COLUMNS, 8
BY = '{instance=~"$instance"}'
OF_DAEMONS = f"and on (instance) kvferry_build_info{BY}"
"""Prometheus's own metrics of processes: every program has them."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph.

    Args:
        title: what it shows.
        unit: Grafana's name of the unit.
        queries: PromQL by legend.
        text: what to think of it.
    """

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""


def rate(metric: str, labels: str = "", by: str = "") -> str:
    """Sum of a counter's rates, per value of some labels."""
    chosen = f'{{instance=~"$instance"{", " if labels else ""}{labels}}}'
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(kvferry_{metric}{chosen}[$__rate_interval]))"


def quantile(share: float, metric: str, labels: str = "") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels, 'le')})"


def quantiles(metric: str, labels: str = "") -> dict[str, str]:
    """The median and the 99th percentile."""
    return {"p50": quantile(0.5, metric, labels), "p99": quantile(0.99, metric, labels)}


def gauge(name: str, by: str = "", labels: str = "") -> str:
    """Sum of a gauge, per value of some labels."""
    chosen = f'{{instance=~"$instance"{", " if labels else ""}{labels}}}'
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (kvferry_{name}{chosen})"


def largest(name: str) -> str:
    """The largest value of a gauge."""
    return f"max (kvferry_{name}{BY})"


ENDED_LOADS = rate("chunks_total", 'operation="load", outcome!="cancelled"')
LOADED = rate("chunks_total", 'operation="load", outcome="loaded"')
PRESENT = rate("lookup_verdicts_total", 'verdict="present"')
KNOWN = rate("lookup_verdicts_total", 'verdict=~"present|absent"')
ROWS: dict[str, tuple[Panel, ...]] = {
    "Is it well?": (
        Panel(
            "Loads that ended well",
            "percentunit",
            {"loaded": f"{LOADED} / {ENDED_LOADS}"},
            "SLO: 99 %. What is missing became a miss: its request was computed anew.",
        ),
        Panel(
            "Duration of lookups",
            "s",
            quantiles("rpc_duration_seconds", 'method="Lookup"'),
            "SLO: 99 % within 2 s. A request waits this long before it is computed or loaded.",
        ),
        Panel(
            "State",
            "none",
            {
                "store ready": f"min (kvferry_store_ready{BY})",
                "breaker open, {{breaker}}": gauge("breaker_state", "breaker", 'state="open"'),
                "paused, {{operation}}": gauge("paused", "operation"),
            },
            "Ready 1 and all others 0 is well.",
        ),
    ),
    "Work": (
        Panel(
            "Payload moved",
            "Bps",
            {"{{operation}}": rate("transferred_bytes_total", by="operation")},
        ),
        Panel(
            "Hit ratio of lookups",
            "percentunit",
            {"present": f"{PRESENT} / {KNOWN}"},
            "Of the keys whose state was known.",
        ),
        Panel(
            "Lookup verdicts by source",
            "ops",
            {"{{verdict}}, {{source}}": rate("lookup_verdicts_total", by="verdict, source")},
            "index: no request to the store; probe: asked; cutoff: unknown.",
        ),
        Panel(
            "Loads by outcome",
            "ops",
            {"{{outcome}}": rate("chunks_total", 'operation="load"', "outcome")},
        ),
        Panel(
            "Stores by outcome",
            "ops",
            {"{{outcome}}": rate("chunks_total", 'operation="store"', "outcome")},
        ),
        Panel("Jobs", "ops", {"{{operation}}": rate("jobs_total", by="operation")}),
    ),
    "Latency and queues": (
        Panel("One load attempt", "s", quantiles("transfer_duration_seconds", 'operation="load"')),
        Panel(
            "One store attempt", "s", quantiles("transfer_duration_seconds", 'operation="store"')
        ),
        Panel(
            "Wait in the queue, p99",
            "s",
            {
                operation: quantile(0.99, "queue_wait_seconds", f'operation="{operation}"')
                for operation in ("load", "store")
            },
        ),
        Panel(
            "Chunks in the daemon",
            "none",
            {
                "queued, {{operation}}": gauge("queued_chunks", "operation"),
                "active, {{operation}}": gauge("active_chunks", "operation"),
                "most active at once": gauge("max_active_chunks"),
            },
            "Active at its most for long: raise limits.max_inflight_chunks, or the store is slow.",
        ),
        Panel("Payload queued to be stored", "bytes", {"bytes": gauge("queued_store_bytes")}),
        Panel(
            "Oldest transfer, oldest region of a dead engine",
            "s",
            {
                "transfer": largest("oldest_active_seconds"),
                "dead engine's region": largest("dead_engine_age_seconds"),
            },
            "At timeouts.hard_deadline_seconds (60) the daemon ends itself.",
        ),
    ),
    "The object store": (
        Panel(
            "Requests",
            "reqps",
            {"{{verb}} {{outcome}}": rate("store_requests_total", by="verb, outcome")},
            "What the store charges for.",
        ),
        Panel("Duration of probes", "s", quantiles("probe_duration_seconds")),
        Panel(
            "Probed keys",
            "ops",
            {"keys": rate("probed_keys_total"), "failed": rate("probe_errors_total")},
        ),
        Panel(
            "Retries and refusals",
            "ops",
            {
                "retry {{operation}}: {{reason}}": rate("retries_total", by="operation, reason"),
                "refused {{operation}}: {{reason}}": rate(
                    "refused_chunks_total", by="operation, reason"
                ),
            },
        ),
        Panel(
            "Integrity of loads",
            "ops",
            {"{{result}}": rate("integrity_total", by="result")},
            "SLO: no corrupt one.",
        ),
        Panel(
            "Time until credentials expire",
            "s",
            {
                "left": f"(kvferry_credential_expiry_timestamp_seconds{BY} > 0) - time() or "
                f"0 * kvferry_credential_expiry_timestamp_seconds{BY}"
            },
            "0: they do not expire.",
        ),
    ),
    "Engines and process": (
        Panel(
            "Sessions",
            "none",
            {
                "attached": gauge("sessions"),
                "opened per minute": f"60 * {rate('sessions_opened_total')}",
                "lost per minute": f"60 * {rate('lease_losses_total')}",
            },
        ),
        Panel(
            "Memory",
            "bytes",
            {
                "resident": f"sum (process_resident_memory_bytes {OF_DAEMONS})",
                "regions": gauge("region_bytes"),
                "regions of dead engines": gauge("dead_engine_bytes"),
            },
            "Regions' pages that the daemon has touched are resident, too.",
        ),
        Panel(
            "Calls",
            "reqps",
            {"{{method}} {{code}}": f"{rate('rpcs_total', by='method, code')} > 0"},
        ),
        Panel("Keys in the index", "none", {"keys": gauge("index_entries")}),
        Panel(
            "Processor cores in use",
            "none",
            {"cores": f"sum (rate(process_cpu_seconds_total[$__rate_interval]) {OF_DAEMONS})"},
        ),
        Panel("Open descriptors", "none", {"descriptors": f"sum (process_open_fds {OF_DAEMONS})"}),
    ),
}


def targets(panel: Panel) -> list[dict[str, Any]]:
    """Its queries."""
    return [
        {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]


def dashboard() -> dict[str, Any]:
    """The whole file."""
    panels: list[dict[str, Any]] = []
    at = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": at, "w": 24, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "collapsed": False})
        for number, panel in enumerate(row):
            line, column = divmod(number, COLUMNS)
            y = at + 1 + line * HEIGHT
            panels.append(
                {
                    "type": "timeseries",
                    "title": panel.title,
                    "description": panel.text,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "gridPos": {"x": column * WIDTH, "y": y, "w": WIDTH, "h": HEIGHT},
                    "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                    "options": {"tooltip": {"mode": "multi"}},
                    "targets": targets(panel),
                }
            )
        at += 1 + -(-len(row) // COLUMNS) * HEIGHT
    for number, panel_json in enumerate(panels, 1):
        panel_json["id"] = number
    return {
        "uid": "kvferry",
        "title": "kvferry",
        "tags": ["kvferry", "vllm"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": [_datasource(), _instance()]},
        "panels": panels,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(kvferry_build_info, instance)",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
    }


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = json.dumps(dashboard(), indent=1) + "\n"
    if parser.parse_args().check:
        if FILE.read_text() != text:
            print(f"{FILE.name} is not what the table gives: run `make dashboard`")
            return 1
        return 0
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
