"""Cells of the daemon alone: RPCs, small chunks, growth, the index, start and idleness, a flood.

All but the flood are on the file store in memory, where nothing but kvferry takes time.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from . import daemon, slow_store
from .engines import Server
from .workers.protocol import Worker

RPC_CALLS = 400
SMALL_CHUNK_BYTES = 4096
SMALL_CHUNKS = 4096
GROWTH_CHUNK_BYTES = 65_536
GROWTH_CHUNKS = 2048
"""Of all sessions together."""
SESSIONS = 8
JOBS = 64
KEYS = (1_000, 1_000_000)
_KEYS_PER_LOOKUP = 10_000
_LONG = "[limits]\nmax_presence_entries = 1200000\n[presence]\nabsent_seconds = 3600\n"
IDLE_SECONDS = 10.0
FLOOD_CHUNK_BYTES = 1 << 20
FLOOD_CHUNKS = 32
_FLOOD_PAUSE_SECONDS = 0.01
_SETTLE_SECONDS = 0.5
PREFILL = 1_300_000_000
"""KV bytes a second: 10,000 tokens of 128 KiB."""
SLOW_LINK = 20e6
"""Bytes a second."""
PACE_CHUNKS = 16
_PACE_LATENCY_SECONDS = 0.02


def rpc(pairs: int) -> tuple[list[float], list[float]]:
    """Median seconds of a warm lookup of 64 keys, and of a bare echo, block by block."""
    lookups, echoes = [], []
    with ExitStack() as stack:
        served = stack.enter_context(daemon.running(""))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-bench-"))
        side = stack.enter_context(
            Worker("bench.workers.rpc_side", {"socket_dir": served.socket_dir})
        )
        socket = f"{folder}/echo.sock"
        settings = {"socket": socket, "reply_bytes": side("reply_bytes")}
        echo = stack.enter_context(Worker("bench.workers.echo_server", settings))
        echo("ready")
        side("connect", echo=socket)
        for number in range(pairs + 1):
            blocks = {name: side(name, calls=RPC_CALLS) for name in _turns(number)}
            if number:
                lookups.append(statistics.median(blocks["lookups"]))
                echoes.append(statistics.median(blocks["echoes"]))
    return lookups, echoes


def _turns(number: int) -> Sequence[str]:
    return ("lookups", "echoes") if number % 2 else ("echoes", "lookups")


def chunk_rate(rounds: int) -> dict[str, list[float]]:
    """Chunks of 4 KiB a second, stored and loaded."""
    rates: dict[str, list[float]] = {"store": [], "load": []}
    with (
        daemon.running("") as served,
        daemon.engine_side(served, SMALL_CHUNKS, SMALL_CHUNK_BYTES) as side,
    ):
        for number in range(rounds + 1):
            for verb, found in rates.items():
                taken = side(verb, name=f"round{number}")
                if number:
                    found.append(SMALL_CHUNKS / taken["seconds"])
    return rates


def growth(rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """CPU seconds of the daemon per chunk, large and small, in turn, by what grows."""
    found: dict[str, tuple[list[float], list[float]]] = {"sessions": ([], []), "jobs": ([], [])}
    with ExitStack() as stack:
        served = stack.enter_context(daemon.running(""))
        one = [stack.enter_context(daemon.engine_side(served, GROWTH_CHUNKS, GROWTH_CHUNK_BYTES))]
        few = stack.enter_context(
            daemon.engine_side(served, GROWTH_CHUNKS, GROWTH_CHUNK_BYTES, open_jobs=1)
        )
        many = [
            stack.enter_context(
                daemon.engine_side(served, GROWTH_CHUNKS // SESSIONS, GROWTH_CHUNK_BYTES)
            )
            for _ in range(SESSIONS)
        ]
        for number in range(rounds + 1):
            name = f"round{number}"
            small, large = _per_chunk(served, one, name), _per_chunk(served, many, name)
            single = _per_chunk(served, [few], name)
            if number:
                found["sessions"][0].append(large)
                found["sessions"][1].append(small)
                found["jobs"][0].append(small)
                found["jobs"][1].append(single)
    return found


def _per_chunk(served: daemon.Daemon, sides: Sequence[Worker], name: str) -> float:
    """CPU seconds of the daemon per chunk that these sessions store and load at the same time."""

    def move(side: Worker) -> None:
        side("store", name=name)
        side("load", name=name)

    before = served.cpu_seconds()
    threads = [threading.Thread(target=move, args=(side,)) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (served.cpu_seconds() - before) / (2 * GROWTH_CHUNKS)


def index(rounds: int) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Bytes of memory per key of the index; CPU seconds per chunk with many keys and with few."""
    bytes_per_key: list[float] = []
    costs: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as stack:
        served = {keys: stack.enter_context(daemon.running("", None, _LONG)) for keys in KEYS}
        sides = {
            keys: stack.enter_context(daemon.engine_side(each, GROWTH_CHUNKS, GROWTH_CHUNK_BYTES))
            for keys, each in served.items()
        }
        for keys, side in sides.items():
            side("store", name="warm")
            before = served[keys].resident_bytes("RssAnon")
            for at in range(0, keys, _KEYS_PER_LOOKUP):
                side("lookup", name=f"known{at}", count=min(keys, _KEYS_PER_LOOKUP), present=False)
            grown = served[keys].resident_bytes("RssAnon") - before
            if keys == max(KEYS):
                bytes_per_key.append(grown / keys)
        for number in range(rounds + 1):
            for keys, found in zip(reversed(KEYS), costs, strict=True):
                cost = _per_chunk(served[keys], [sides[keys]], f"round{number}")
                if number:
                    found.append(cost)
    return bytes_per_key, costs


def startup(rounds: int) -> dict[str, list[float]]:
    """Seconds from start to ready, resident bytes and share of a core while idle."""
    found: dict[str, list[float]] = {"seconds": [], "bytes": [], "share": []}
    for number in range(rounds):
        with daemon.running("") as served:
            found["seconds"].append(served.start_seconds)
            if number == 0:
                time.sleep(_SETTLE_SECONDS)
                began, used = time.perf_counter(), served.cpu_seconds()
                time.sleep(IDLE_SECONDS)
                share = (served.cpu_seconds() - used) / (time.perf_counter() - began)
                found["share"].append(share)
            found["bytes"].append(served.resident_bytes())
    return found


def flood(server: Server, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """99th percentile of a load's seconds during a flood of stores and without, in turn."""
    with_flood, without = [], []
    with ExitStack() as stack:
        url = f"s3://{server.bucket}/kv"
        served = stack.enter_context(daemon.running(url, server.environment()))
        loader = stack.enter_context(daemon.engine_side(served, FLOOD_CHUNKS, FLOOD_CHUNK_BYTES))
        storer = stack.enter_context(daemon.engine_side(served, FLOOD_CHUNKS, FLOOD_CHUNK_BYTES))
        loader("store", name="known")
        for number in range(rounds + 1):
            quiet = _tail(loader, seconds)
            flooding = threading.Thread(
                target=storer,
                args=("flood",),
                kwargs={"name": f"flood{number}", "seconds": seconds + 2 * _SETTLE_SECONDS},
            )
            flooding.start()
            time.sleep(_SETTLE_SECONDS)
            loud = _tail(loader, seconds)
            flooding.join()
            if number:
                with_flood.append(loud)
                without.append(quiet)
    return with_flood, without


def pace(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds until a request can go on over a slow link: with a least load rate and without."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    options = {"with": f"[admission]\nmin_load_bytes_per_second = {PREFILL}\n", "without": ""}
    with ExitStack() as stack:
        server = stack.enter_context(slow_store.running())
        url, environment = f"s3://{server.bucket}/kv", server.environment()
        sides = {}
        for name, option in options.items():
            served = stack.enter_context(daemon.running(url, environment, option))
            side = daemon.engine_side(served, PACE_CHUNKS, 1 << 20, namespace="bench-pace")
            sides[name] = stack.enter_context(side)
        sides["without"]("store", name="prefix")
        server.slow_down(_PACE_LATENCY_SECONDS, SLOW_LINK)
        for number in range(rounds + 1):
            for name, found in seconds.items():
                taken = sides[name]("request", name="prefix")
                if number:
                    found.append(taken)
    return seconds["with"], seconds["without"]


def _tail(loader: Worker, seconds: float) -> float:
    taken = loader("latencies", name="known", seconds=seconds, pause_seconds=_FLOOD_PAUSE_SECONDS)
    return statistics.quantiles(taken, n=100)[-1]
