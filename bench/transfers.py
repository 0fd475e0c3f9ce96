"""Cell: chunks out and back on one server, by the daemon and by other clients, in turn.

Every contestant has as many requests in flight as the others, moves the same bytes from memory to
objects of its own and back, and has what it loaded compared with what it stored.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.support.s3_server import REGION, S3Server

from . import daemon
from .workers.contestant import IN_FLIGHT
from .workers.protocol import Worker

OTHERS = ("nixl_direct", "boto3_threads", "obstore_async")
OPTIONS = f"[limits]\nmax_inflight_chunks = {IN_FLIGHT}\n"
GIGABYTE = 1e9


@dataclass
class Series:
    """What each contestant did, round by round; the same index is the same round."""

    chunk_bytes: int
    chunks: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By `<contestant> store` and `<contestant> load`."""
    cpu_seconds_per_gb: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of the process that moves the bytes: for kvferry the daemon."""

    def rates(self, name: str) -> list[float]:
        """Megabytes per second."""
        return [self.chunks * self.chunk_bytes / 1e6 / each for each in self.seconds[name]]


def measure(server: S3Server, chunk_bytes: int, chunks: int, rounds: int) -> Series:
    """Measure one chunk size; the first round of each contestant is not counted."""
    where = {
        "endpoint_url": server.endpoint_url,
        "bucket": server.bucket,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "region": REGION,
    }
    series = Series(chunk_bytes, chunks)
    gigabytes = chunks * chunk_bytes / GIGABYTE
    with ExitStack() as stack:
        served = stack.enter_context(
            daemon.running(f"s3://{server.bucket}/kv", server.environment(), OPTIONS)
        )
        side = daemon.engine_side(served, chunks, chunk_bytes)
        workers = {"kvferry": stack.enter_context(side)}
        for name in OTHERS:
            workers[name] = stack.enter_context(Worker(f"bench.workers.{name}", where))
            workers[name]("prepare", chunks=chunks, chunk_bytes=chunk_bytes)
        names = list(workers)
        for number in range(rounds + 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                for verb in ("store", "load"):
                    before = served.cpu_seconds()
                    taken = workers[name](verb, name=f"round{number}")
                    used = served.cpu_seconds() - before
                    if number:
                        series.seconds[f"{name} {verb}"].append(taken["seconds"])
                        used = used if name == "kvferry" else taken["cpu_seconds"]
                        series.cpu_seconds_per_gb[f"{name} {verb}"].append(used / gigabytes)
    return series
