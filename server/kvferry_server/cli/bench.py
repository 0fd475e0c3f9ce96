"""`kvferry bench`: how fast a store is through the daemon, beside the same store without it.

Owns the run and its words. As in `demo` the daemon and the engine's side are processes of their
own; the store without a daemon is this process's. Both move the same bytes in turn, pair by pair,
so that what the machine does besides weighs on both.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvferry_server.core.errors import ConfigError, Unavailable
from kvferry_server.core.naming import object_name
from kvferry_server.core.ports import ObjectStore
from kvferry_server.core.types import JobKind, ObjectRef, TransferStatus
from kvferry_server.service.settings import ADMIN_SOCKET

from . import logs
from .check import Doctor, for_trial
from .demo import SOCKETS, Interrupted, Interrupts, own_daemon, temporary_directory, wait_ready
from .options import Config, StoreOptions
from .pairs import Estimate, estimate, ratios
from .store_url import parse_store_url
from .text import printable, size
from .wire import build_doctor, build_store

CHUNK_SIZES = (256 << 10, 1 << 20, 8 << 20)
MEGABYTE = 1e6
_VERBS = {"store": JobKind.STORE, "load": JobKind.LOAD}


@dataclass(slots=True)
class SizeResult:
    """What was measured with chunks of one size; seconds, pair by pair."""

    chunk_bytes: int
    chunks: int
    daemon: dict[str, list[float]] = field(default_factory=lambda: {"store": [], "load": []})
    alone: dict[str, list[float]] = field(default_factory=lambda: {"store": [], "load": []})
    lookup: dict[str, list[float]] = field(default_factory=lambda: {"absent": [], "known": []})

    def rate(self, verb: str) -> float:
        """Median megabytes per second through the daemon."""
        moved = self.chunks * self.chunk_bytes / MEGABYTE
        return statistics.median(moved / each for each in self.daemon[verb])

    def against_alone(self, verb: str) -> Estimate:
        """MB/s through the daemon by MB/s of the store alone."""
        return estimate(ratios(self.alone[verb], self.daemon[verb]))


def run(args: argparse.Namespace) -> int:
    """Measure a store.

    Returns:
        0 if everything that was stored came back.

    Raises:
        ConfigError: the URL or a number is wrong.
        Unavailable: the store can't be used, or a chunk failed.
    """
    pairs = _number(args.pairs, "--pairs", 2)
    megabytes = _number(args.megabytes, "--megabytes", 1)
    if args.url:
        parse_store_url(args.url)
    logs.set_up("error", "text")
    interrupts = Interrupts()
    try:
        with temporary_directory() as directory:
            url = args.url or (directory / "store").as_uri()
            doctor = build_doctor(Config(store=StoreOptions(url=url)))
            with doctor.trial() as trial:
                results = list(
                    _measured(directory, trial, pairs, megabytes << 20, doctor, interrupts)
                )
    except Interrupted:
        print("\ninterrupted; what was stored is removed", file=sys.stderr)
        return 1
    print(_as_json(url, results) if args.json else _as_text(url, results))
    return 0


def _measured(
    directory: Path,
    url: str,
    pairs: int,
    round_bytes: int,
    doctor: Doctor,
    interrupts: Interrupts,
) -> Iterator[SizeResult]:
    store = build_store(for_trial(Config(), url))
    sockets = directory / SOCKETS
    try:
        preflight = store.preflight()
        if not preflight.ready:
            raise Unavailable(f"the store can't be used: {preflight.problem}", reason="STORE")
        with (
            (directory / "daemon.log").open("w+") as log,
            own_daemon(sockets, url, log) as daemon,
        ):
            wait_ready(daemon, sockets / ADMIN_SOCKET, log, interrupts)
            for chunk_bytes in CHUNK_SIZES:
                chunks = max(4, round_bytes // chunk_bytes)
                measured = SizeResult(chunk_bytes, chunks)
                trial = _Trial(measured, store, doctor)
                with _engine_side(sockets, trial) as engine:
                    for number in range(pairs + 1):
                        _say(f"{size(chunk_bytes)} chunks: pair {number} of {pairs}")
                        trial.pair(engine, number)
                        interrupts.pause()
                yield measured
    finally:
        store.close()


class _Trial:
    """One chunk size: the rounds of both sides, and the removal of their objects."""

    def __init__(self, result: SizeResult, store: ObjectStore, doctor: Doctor) -> None:
        self.namespace = f"bench-{secrets.token_hex(8)}"
        self.result = result
        self._store = store
        self._doctor = doctor
        self._memory = memoryview(bytearray(result.chunks * result.chunk_bytes))
        self._memory[:] = secrets.token_bytes(len(self._memory))

    def pair(self, engine: _Engine, number: int) -> None:
        """Both sides once; the first pair warms up and is not counted."""
        result, name = self.result, f"round{number}"
        names = [self._name(key) for key in engine.keys(name)]
        others = [f"{each}-alone" for each in names]
        try:
            lookups = {"absent": engine.lookup(name, present=False)}
            daemon = {verb: engine.move(verb, name) for verb in _VERBS}
            lookups["known"] = engine.lookup(name, present=True)
            alone = {verb: self._move(kind, others) for verb, kind in _VERBS.items()}
        finally:
            self._doctor.delete(*names, *others)
        if number:
            for verb in _VERBS:
                result.daemon[verb].append(daemon[verb])
                result.alone[verb].append(alone[verb])
            for case, seconds in lookups.items():
                result.lookup[case].append(seconds)

    def _name(self, key: bytes) -> str:
        return object_name(ObjectRef(self.namespace, key))

    def _move(self, kind: JobKind, names: list[str]) -> float:
        """Seconds to move all slots without a daemon, as many at once as the store really runs.

        Raises:
            Unavailable: a chunk failed.
        """
        step = self.result.chunk_bytes
        room = threading.Semaphore(self._store.max_active_chunks)
        ended: list[TransferStatus] = []

        def done(status: TransferStatus) -> None:
            ended.append(status)
            room.release()

        began = time.monotonic()
        for number, name in enumerate(names):
            room.acquire()
            view = self._memory[number * step : (number + 1) * step]
            self._store.transfer(kind, name, view, done)
        for _ in range(self._store.max_active_chunks):
            room.acquire()
        seconds = time.monotonic() - began
        failed = {status.name for status in ended if status is not TransferStatus.OK}
        if failed:
            raise Unavailable(f"chunks ended {', '.join(sorted(failed))}", reason="BENCH")
        return seconds


class _Engine:
    """The engine's side: `kvferry_client.bench` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], chunks: int) -> None:
        self._process = process
        self._chunks = chunks

    def move(self, verb: str, name: str) -> float:
        """Seconds of a round."""
        return float(self._ask(verb, name=name)["seconds"])

    def lookup(self, name: str, *, present: bool) -> float:
        """Seconds until it is known which keys of a round are stored."""
        return float(self._ask("lookup", name=name, count=self._chunks, present=present))

    def keys(self, name: str) -> list[bytes]:
        """Those of a round."""
        return [bytes.fromhex(each) for each in self._ask("keys", name=name)]

    def _ask(self, command: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise Unavailable("the engine's side has no streams", reason="BENCH")
        line = ""
        try:
            process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            with suppress(BrokenPipeError):
                process.stdin.close()
        answer = json.loads(line) if line else {"error": "the engine's side ended"}
        if "error" in answer:
            raise Unavailable(printable(answer["error"]), reason="BENCH")
        return answer["value"]


@contextmanager
def _engine_side(sockets: Path, trial: _Trial) -> Iterator[_Engine]:
    settings = {
        "socket_dir": str(sockets),
        "namespace": trial.namespace,
        "chunks": trial.result.chunks,
        "chunk_bytes": trial.result.chunk_bytes,
    }
    command = [sys.executable, "-P", "-m", "kvferry_client.bench", json.dumps(settings)]
    with subprocess.Popen(  # noqa: S603 - a module of ours
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield _Engine(process, trial.result.chunks)


def _number(text: str, flag: str, at_least: int) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < at_least:
        raise ConfigError(
            f"{flag} must be a whole number of {at_least} or more", reason="BENCH", field=flag
        )
    return number


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_json(url: str, results: list[SizeResult]) -> str:
    sizes = [
        {
            "chunk_bytes": each.chunk_bytes,
            "chunks": each.chunks,
            "pairs": len(each.daemon["store"]),
            **{f"{verb}_mb_per_second": each.rate(verb) for verb in _VERBS},
            **{
                f"{verb}_by_store_alone": {
                    "median": found.median,
                    "low": found.low,
                    "high": found.high,
                }
                for verb in _VERBS
                for found in [each.against_alone(verb)]
            },
            **{
                f"lookup_{case}_seconds": statistics.median(seconds)
                for case, seconds in each.lookup.items()
            },
        }
        for each in results
    ]
    return json.dumps({"url": url, "sizes": sizes})


def _as_text(url: str, results: list[SizeResult]) -> str:
    lines = [
        f"store {printable(url)}, every byte that the daemon loads is compared",
        "",
        f"{'chunk':>8}{'chunks':>8}{'store':>12}{'load':>12}   by the same without a daemon",
    ]
    for each in results:
        by = "   ".join(f"{verb} {_interval(each.against_alone(verb))}" for verb in _VERBS)
        rates = "".join(f"{each.rate(verb):>7,.0f} MB/s" for verb in _VERBS)
        lines.append(f"{size(each.chunk_bytes):>8}{each.chunks:>8}{rates}   {by}")
    lines += ["", f"{'chunk':>8}{'keys':>8}   lookup: none stored, all known to the daemon"]
    for each in results:
        milliseconds = "".join(
            f"{1000 * statistics.median(seconds):>8.1f} ms" for seconds in each.lookup.values()
        )
        lines.append(f"{size(each.chunk_bytes):>8}{each.chunks:>8}{milliseconds}")
    lines += ["", "Ratios above 1 mean faster through the daemon; brackets: 95 % of the medians."]
    return "\n".join(lines)


def _interval(found: Estimate) -> str:
    return f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"
