"""Cells with vLLM's own manager: kvferry's tier and the in-process `obj` tier, in turn.

Owns where vLLM's environment is and how each tier is configured. Where bytes are moved both have
the same number of requests in flight; the obj tier has its io_threads raised to that, from 4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tools.e2e_vllm_matrix import CHECKOUT, ENVIRONMENT, NIXL, PYTEST, overlay

from . import daemon, slow_store
from .transfers import OPTIONS
from .workers.contestant import IN_FLIGHT
from .workers.protocol import Worker

LOOKUP_KEYS = 512
DEFAULT_IO_THREADS = 4
_LOOKUP_CHUNK_BYTES = 8192
_PRESENT = "present"


class Server(Protocol):
    """What a tier must know of an S3 server."""

    endpoint_url: str
    bucket: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """The variables that point an AWS SDK at it."""


@dataclass
class EngineSeries:
    """Runs of both tiers, in turn; each is what `EngineSide.run` returns."""

    runs: dict[str, list[dict[str, Any]]]

    def of(self, tier: str, name: str) -> list[float]:
        """One figure of each run."""
        return [float(run[name]) for run in self.runs[tier]]


def measure(server: Server, chunk_bytes: int, chunks: int, rounds: int) -> EngineSeries:
    """Store, look up and load through vLLM's manager; each tier's first run is not counted."""
    series = EngineSeries({"kvferry": [], "obj": []})
    with ExitStack() as stack:
        url = f"s3://{server.bucket}/kv"
        served = stack.enter_context(daemon.running(url, server.environment(), OPTIONS))
        tiers = {"kvferry": kvferry_tier(served), "obj": obj_tier(server, IN_FLIGHT)}
        engines = {
            name: stack.enter_context(engine(tier, chunks, chunk_bytes))
            for name, tier in tiers.items()
        }
        for number in range(rounds + 1):
            for name in list(engines)[:: 1 if number % 2 else -1]:
                run = engines[name]("run", name=f"round{number}")
                if number:
                    series.runs[name].append(run)
    return series


def lookups(latency_seconds: float, rounds: int) -> dict[str, list[float]]:
    """Seconds until a new request knows its prefix, by `<tier> <case>`.

    Cases: `absent` and `present` were never asked for; `known` are present and the daemon knows.
    The tiers are kvferry with its defaults, and the obj tier with its default and its best number
    of threads (more than 25 change nothing).
    """
    seconds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(slow_store.running())
        threads = {"obj": DEFAULT_IO_THREADS, "obj best": IN_FLIGHT}
        tiers = {name: obj_tier(server, each) for name, each in threads.items()}
        others = {
            name: stack.enter_context(engine(tier, LOOKUP_KEYS, _LOOKUP_CHUNK_BYTES))
            for name, tier in tiers.items()
        }
        url, environment = f"s3://{server.bucket}/kv", server.environment()
        with (
            daemon.running(url, environment) as writer,
            engine(kvferry_tier(writer), LOOKUP_KEYS, _LOOKUP_CHUNK_BYTES) as side,
        ):
            for number in range(rounds):
                side("put", name=f"{_PRESENT}{number}", count=LOOKUP_KEYS)
        others["obj"]("put", name=_PRESENT, count=LOOKUP_KEYS)
        server.slow_down(latency_seconds)
        served = stack.enter_context(daemon.running(url, environment))
        others["kvferry"] = stack.enter_context(
            engine(kvferry_tier(served), LOOKUP_KEYS, _LOOKUP_CHUNK_BYTES)
        )
        for number in range(rounds):
            for name in list(others)[:: 1 if number % 2 else -1]:
                mine = f"{_PRESENT}{number}" if name == "kvferry" else _PRESENT
                cases = [("absent", f"absent{number}", False), ("present", mine, True)]
                cases += [("known", mine, True)] if name == "kvferry" else []
                for case, keys, present in cases:
                    taken = others[name]("lookup", name=keys, count=LOOKUP_KEYS, present=present)
                    seconds.setdefault(f"{name} {case}", []).append(taken)
    return seconds


@contextmanager
def engine(tier: dict[str, Any], chunks: int, chunk_bytes: int) -> Iterator[Worker]:
    """The scheduler side of vLLM with this tier, in a process of vLLM's environment."""
    folders = (CHECKOUT, overlay("pytest", *PYTEST), overlay("nixl", *NIXL))
    settings = {"tier": tier, "chunks": chunks, "chunk_bytes": chunk_bytes}
    variables = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    with Worker(
        "bench.workers.engine_side", settings, ENVIRONMENT / "bin" / "python", variables
    ) as worker:
        yield worker


def kvferry_tier(served: daemon.Daemon) -> dict[str, Any]:
    """The tier as a user configures it; the model's weights do not change on a reset here."""
    return {"type": "kvferry", "socket_dir": served.socket_dir, "after_reset": "keep"}


def obj_tier(server: Server, io_threads: int) -> dict[str, Any]:
    """The in-process tier."""
    store = {
        "bucket": server.bucket,
        "endpoint_override": server.endpoint_url.partition("://")[2],
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "scheme": "http",
    }
    return {"type": "obj", "store_config": store, "prefix": "obj", "io_threads": io_threads}
