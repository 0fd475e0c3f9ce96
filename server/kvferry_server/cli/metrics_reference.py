"""`python -m kvferry_server.cli.metrics_reference`: docs/metrics.md from the table of metrics.

Imports the metrics adapters only.
"""

from __future__ import annotations

import sys

from kvferry_server.adapters.metric_families import FAMILIES, SECONDS_BUCKETS, Family

_HEAD = """\
# Metrics

<!-- Made by `python -m kvferry_server.cli.metrics_reference`; change
     server/kvferry_server/adapters/metric_families.py instead. -->

`GET /metrics` of the HTTP listener, Prometheus text format 0.0.4. Beside these, the listener shows
Prometheus's usual `process_*` metrics: CPU, memory, open descriptors, start time.

* Every series below exists from the start, with the value 0 until something happens. No other
  series ever appears: no label holds a key, an id, a URL or an error text.
* Times are in seconds and sizes in bytes. Counters start at 0 with the daemon.
* `operation` is `store` (from the engine's memory to the object store) or `load` (back).
* What a caller sees of the outcomes: [protocol](protocol.md#outcomes).
* The engine has metrics of its own, `vllm:kv_offload_kvferry_*`, on vLLM's port.

Buckets of every histogram: {buckets} and `+Inf`.

Often wanted:

```promql
# hit ratio of lookups
sum(rate(kvferry_lookup_verdicts_total{{verdict="present"}}[5m]))
  / sum(rate(kvferry_lookup_verdicts_total{{verdict=~"present|absent"}}[5m]))
# bytes per second
sum by (operation) (rate(kvferry_transferred_bytes_total[5m]))
# 99th percentile of a chunk's load
histogram_quantile(0.99, sum by (le) (
  rate(kvferry_transfer_duration_seconds_bucket{{operation="load"}}[5m])))
# share of loads that ended well
sum(rate(kvferry_chunks_total{{operation="load",outcome="loaded"}}[5m]))
  / sum(rate(kvferry_chunks_total{{operation="load"}}[5m]))
# PUT requests of a month at the present rate
sum(rate(kvferry_store_requests_total{{verb="put"}}[1h])) * 86400 * 30
```
"""


def render() -> str:
    """The whole document."""
    buckets = ", ".join(f"`{bound:g}`" for bound in SECONDS_BUCKETS)
    return _HEAD.format(buckets=buckets) + "".join(map(_entry, FAMILIES))


def _entry(family: Family) -> str:
    lines = [f"\n## `{family.full_name}`\n\n{family.kind.capitalize()}. {family.help}\n"]
    if family.name == "build_info":
        lines.append("\n* `version`: of the daemon\n")
    elif family.labels:
        lines.append("\n")
        lines += [_label(family, at) for at in range(len(family.labels))]
        possible = 1
        for at in range(len(family.labels)):
            possible *= len(_values(family, at))
        if len(family.series) < possible:
            lines.append(_combinations(family))
    return "".join(lines)


def _label(family: Family, at: int) -> str:
    values = ", ".join(f"`{value}`" for value in _values(family, at))
    return f"* `{family.labels[at]}`: {values}\n"


def _values(family: Family, at: int) -> list[str]:
    return list(dict.fromkeys(labels[at] for labels in family.series))


def _combinations(family: Family) -> str:
    lines = ["\nOnly these: "]
    groups: dict[str, list[str]] = {}
    for first, second in family.series:
        groups.setdefault(first, []).append(second)
    for first, seconds in groups.items():
        lines.append(f"`{first}` with {', '.join(f'`{each}`' for each in seconds)}; ")
    return "".join(lines).rstrip("; ") + ".\n"


if __name__ == "__main__":
    sys.stdout.write(render())
