"""`kvferry demo`: a daemon and an engine's side as two processes, and nothing left afterwards.

Owns the temporary directory and both processes. The engine's side is `kvferry_client.demo`, run by
name: the server never imports the client.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_server.core.errors import FailedPrecondition, Unavailable
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .store_url import parse_store_url
from .text import printable

START_SECONDS = 30.0
STOP_SECONDS = 40.0
_PAUSE_SECONDS = 0.1


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Returns:
        0 if every byte came back, else 1.

    Raises:
        ConfigError: the store URL is wrong.
        Unavailable: the daemon does not start, or the store can't be used.
    """
    if args.store_url:
        parse_store_url(args.store_url)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _temporary_directory() as directory:
            return _run_in(directory, args.store_url or f"file://{directory}/store")
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left behind", file=sys.stderr)
        return 1


def _run_in(directory: Path, store_url: str) -> int:
    sockets = directory / "run"
    with (directory / "daemon.log").open("w+") as log, _daemon(sockets, store_url, log) as daemon:
        url = _wait_ready(daemon, sockets / ADMIN_SOCKET, log)
        print(f"daemon    process {daemon.pid}, store {printable(url)}", flush=True)
        with _process(
            [sys.executable, "-m", "kvferry_client.demo", "--socket-dir", str(sockets)]
        ) as client:
            return 0 if client.wait() == 0 else 1


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Removed at the end, whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="kvferry-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _daemon(sockets: Path, store_url: str, log: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that knows no setting but these."""
    config = sockets.parent / "config.toml"
    config.touch()
    command = [sys.executable, "-m", "kvferry_server.cli", "serve", "--config", str(config)]
    command += ["--store-url", store_url, "--socket-dir", str(sockets), "--http-listen", ""]
    command += ["--log-level", "warning"]
    with _process(command, log) as daemon:
        yield daemon


@contextmanager
def _process(command: list[str], log: IO[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs in a session of its own, so that Ctrl-C reaches it only through its end here."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("KVFERRY_")}
    process = subprocess.Popen(command, env=environ, stderr=log, start_new_session=True)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


def _wait_ready(daemon: subprocess.Popen[bytes], socket: Path, log: IO[str]) -> str:
    """Wait until the daemon's store passed its preflight; return the store's URL."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if daemon.poll() is not None:
            log.seek(0)
            raise Unavailable(f"the daemon ended:\n{log.read().strip()}", reason="DAEMON_ENDED")
        try:
            store = _ask_store(socket)
        except (Unavailable, FailedPrecondition):
            time.sleep(_PAUSE_SECONDS)
            continue
        if store.problem:
            raise Unavailable(f"the store can't be used: {store.problem}", reason="STORE")
        if store.ready:
            return store.url
        time.sleep(_PAUSE_SECONDS)
    raise Unavailable(f"the daemon is not ready after {START_SECONDS:g} s", reason="NOT_READY")


def _ask_store(socket: Path) -> admin_pb2.StoreStatus:
    with open_channel(socket) as channel, explained(socket):
        return (
            admin_pb2_grpc.AdminServiceStub(channel)
            .GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=CALL_SECONDS)
            .store
        )
