"""The fixed list of cells: which measurement feeds which targets.

A cell measures and returns, by target, what belongs to it pair by pair.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvferry_server.cli import pairs
from tests.support.s3_servers import started

from . import engines, local, transfers
from . import first_token as first_tokens
from .targets import CHUNK_SIZES

LOOKUP_LATENCY_SECONDS = 0.02
OTHER_LATENCIES_SECONDS = (0.0, 0.005, 0.05)
"""Shown, without a target."""
REAL_SERVER = "seaweedfs"
STRICT_SERVER = "ceph"
STRICT_SIZES = (1 << 20, 8 << 20)
_MEGABYTE = 1e6
_TAIL = 0.999


@dataclass
class Measured:
    """What belongs to one target; for a ratio, `ours` and `theirs` are pair by pair.

    Args:
        values: ratios, or the figures themselves.
        ours: in `unit`.
        theirs: in `unit`; empty for a figure that stands alone.
        unit: of ours and theirs.
    """

    values: list[float]
    ours: list[float]
    theirs: list[float] = field(default_factory=list)
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Args:
        pairs: of everything.
        sizes: of chunks.
        round_bytes: moved in one round of one contestant.
        flood_seconds: of each window.
        hits: prompts of each length that are loaded in a real engine.
        extras: also what has no target.
    """

    pairs: int
    sizes: tuple[int, ...]
    round_bytes: int
    flood_seconds: float
    hits: int
    extras: bool


FULL = Extent(10, tuple(CHUNK_SIZES), 96 << 20, 3.0, 6, extras=True)
QUICK = Extent(4, (1 << 20,), 48 << 20, 1.0, 0, extras=False)
Found = dict[str, Measured]


def ratio(ours: list[float], theirs: list[float], unit: str) -> Measured:
    """Ours by theirs."""
    return Measured(pairs.ratios(ours, theirs), ours, theirs, unit)


def transfer(extent: Extent) -> Found:
    """The daemon and other clients on real servers."""
    found: Found = {}
    for size in extent.sizes:
        with started(REAL_SERVER) as server:
            found |= _transfers(server, size, extent, "")
    return found


def strict(extent: Extent) -> Found:
    """The same on the strictest server, without a target; it keeps all in a memory of 4 GiB."""
    found: Found = {}
    less = replace(extent, round_bytes=extent.round_bytes // 3)
    for size in STRICT_SIZES if extent.extras else ():
        with started(STRICT_SERVER) as server:
            found |= _transfers(server, size, less, "ceph-")
    return found


def _transfers(server: Any, size: int, extent: Extent, prefix: str) -> Found:
    series = transfers.measure(server, size, _chunks(size, extent), extent.pairs)
    found: Found = {}
    for verb in ("store", "load"):
        ours = series.rates(f"kvferry {verb}")
        direct = series.rates(f"nixl_direct {verb}")
        others = [series.rates(f"{name} {verb}") for name in ("boto3_threads", "obstore_async")]
        best = max(others, key=statistics.median)
        cpu = series.cpu_seconds_per_gb
        name = f"{verb}-{size}"
        found[f"{prefix}direct-{name}"] = ratio(ours, direct, "MB/s")
        found[f"{prefix}client-{name}"] = ratio(ours, best, "MB/s")
        found[f"{prefix}cpu-{name}"] = ratio(
            cpu[f"kvferry {verb}"], cpu[f"nixl_direct {verb}"], "CPU s/GB"
        )
    return found


def engine(extent: Extent) -> Found:
    """Both tiers behind vLLM's manager, on a real server."""
    found: Found = {}
    for size in extent.sizes:
        chunks = _chunks(size, extent)
        with started(REAL_SERVER) as server:
            series = engines.measure(server, size, chunks, extent.pairs)
        megabytes = chunks * size / _MEGABYTE
        for verb in ("store", "load"):
            rates = {
                tier: [megabytes / each for each in series.of(tier, f"{verb}_seconds")]
                for tier in series.runs
            }
            found[f"obj-{verb}-{size}"] = ratio(rates["kvferry"], rates["obj"], "MB/s")
        if size == 1 << 20:
            found |= _costs(series, 2 * megabytes / 1000)
    by_size = [measured for name, measured in found.items() if name.startswith("obj-")]
    found["obj-best"] = max(by_size, key=lambda each: statistics.median(each.values))
    return found


def _costs(series: engines.EngineSeries, gigabytes: float) -> Found:
    """What the tiers cost the engine, from runs of chunks of one size."""
    sums, tails, cpus = (
        {tier: [figure(run) for run in runs] for tier, runs in series.runs.items()}
        for figure in (
            lambda run: sum(run["call_micros"]) / 1000,
            lambda run: sorted(run["call_micros"])[int(_TAIL * len(run["call_micros"]))],
            lambda run: run["tier_cpu_seconds"] / gigabytes,
        )
    )
    return {
        "scheduler-time": ratio(sums["kvferry"], sums["obj"], "ms"),
        "worst-call": ratio(tails["kvferry"], tails["obj"], "us"),
        "engine-cpu": ratio(cpus["kvferry"], cpus["obj"], "CPU s/GB"),
    }


def lookup(extent: Extent) -> Found:
    """Lookups over a slow store."""
    found = _lookups(LOOKUP_LATENCY_SECONDS, extent.pairs, "")
    if extent.extras:
        for latency in OTHER_LATENCIES_SECONDS:
            found |= _lookups(latency, extent.pairs // 3, f"{1000 * latency:.0f}ms-")
    return found


def _lookups(latency: float, rounds: int, prefix: str) -> Found:
    seconds = engines.lookups(latency, rounds)
    found: Found = {}
    for name, case, other in (
        ("absent-default", "absent", "obj absent"),
        ("absent-best", "absent", "obj best absent"),
        ("present-default", "present", "obj present"),
        ("present-best", "present", "obj best present"),
        ("known", "known", "obj present"),
    ):
        ours, theirs = seconds[f"kvferry {case}"], seconds[other]
        times = [1000 * each for each in ours], [1000 * each for each in theirs]
        found[prefix + name] = Measured(pairs.ratios(theirs, ours), *times, "ms")
    return found


def flood(extent: Extent) -> Found:
    """Loads beside a flood of stores, on a real server."""
    with started(REAL_SERVER) as server:
        loud, quiet = local.flood(server, extent.pairs, extent.flood_seconds)
    found = {"flood": _milliseconds(loud, quiet)}
    if extent.extras:
        found["slow-link"] = _milliseconds(*local.pace(extent.pairs))
    return found


def daemon(extent: Extent) -> Found:
    """RPCs, small chunks, start and idleness."""
    lookups, echoes = local.rpc(extent.pairs)
    micros = [1e6 * each for each in lookups], [1e6 * each for each in echoes]
    found = {"rpc": ratio(*micros, "us")}
    for verb, rates in local.chunk_rate(extent.pairs).items():
        found[f"rate-{verb}"] = Measured(rates, rates, unit="chunks/s")
    started_up = local.startup(extent.pairs)
    sizes = [each / _MEGABYTE for each in started_up["bytes"]]
    found["start"] = Measured(started_up["seconds"], started_up["seconds"], unit="s")
    found["idle-memory"] = Measured(sizes, sizes, unit="MB")
    found["idle-cpu"] = Measured(started_up["share"], started_up["share"], unit="cores")
    return found


def growth(extent: Extent) -> Found:
    """CPU per chunk as sessions, jobs and keys grow; memory of the index."""
    found: Found = {}
    for name, (large, small) in local.growth(extent.pairs).items():
        found[f"grow-{name}"] = _per_chunk(large, small)
    bytes_per_key, costs = local.index(extent.pairs)
    found["grow-keys"] = _per_chunk(*costs)
    found["index"] = Measured(bytes_per_key, bytes_per_key, unit="bytes/key")
    return found


def first_token(extent: Extent) -> Found:
    """A real engine: misses against no tier, hits against computing anew."""
    times = first_tokens.measure(2 * extent.pairs, extent.hits)
    found = {"first-token-miss": _milliseconds(times.miss_with, times.miss_without)}
    for length, (loaded, computed) in times.hits.items():
        found[f"hit-{length}"] = _milliseconds(loaded, computed)
    return found


def _milliseconds(ours: list[float], theirs: list[float]) -> Measured:
    return ratio([1000 * each for each in ours], [1000 * each for each in theirs], "ms")


def _per_chunk(large: list[float], small: list[float]) -> Measured:
    micros = [1e6 * each for each in large], [1e6 * each for each in small]
    return ratio(*micros, "CPU us/chunk")


def _chunks(size: int, extent: Extent) -> int:
    return max(extent.round_bytes // size, 4)


CELLS: dict[str, Callable[[Extent], Found]] = {
    "daemon": daemon,
    "growth": growth,
    "lookup": lookup,
    "flood": flood,
    "engine": engine,
    "first-token": first_token,
    "transfer": transfer,
    "ceph": strict,
}
"""In the order of a run."""
