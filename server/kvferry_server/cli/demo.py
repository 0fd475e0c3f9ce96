"""`kvferry demo`: a daemon and an engine's side as two processes, and nothing left afterwards.

Owns the temporary directory and both processes. The engine's side is `kvferry_client.demo`, run by
name: the server never imports the client. SIGINT and SIGTERM are looked at between the steps, so
that they can't fall between a process's start and the note of it.
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
from kvferry_server.core.errors import ConfigError, FailedPrecondition, Unavailable
from kvferry_server.service.settings import ADMIN_SOCKET

from .channel import CALL_SECONDS, explained, open_channel
from .options import LONGEST_SOCKET_NAME, SOCKET_PATH_BYTES
from .store_url import FileUrl, parse_store_url
from .text import printable, size

START_SECONDS = 30.0
STOP_SECONDS = 40.0
NEEDED_BYTES = 264 << 20
"""256 chunks of 1 MiB, and what else a file system needs for them."""
_LEFT = "what was stored is below demo-* in the store: delete it, or let it expire"
_PAUSE_SECONDS = 0.1
SOCKETS = "run"


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Returns:
        0 if every byte came back, else 1.

    Raises:
        ConfigError: the store URL is wrong, or TMPDIR too long for a socket's path.
        Unavailable: the daemon does not start, or the store can't be used or has no room.
    """
    if args.store_url:
        parse_store_url(args.store_url)
    interrupts = Interrupts()
    try:
        with temporary_directory() as directory:
            url = args.store_url or (directory / "store").as_uri()
            _check_space(url, "--store-url" if args.store_url else "TMPDIR")
            status = _run_in(directory, url, interrupts)
    except Interrupted:
        left = _LEFT if args.store_url else "nothing is left behind"
        print(f"\ninterrupted; {left}", file=sys.stderr)
        return 1
    if args.store_url:
        print(f"objects   {_LEFT}")
    return status


class Interrupted(Exception):
    """The user wants it to end."""


class Interrupts:
    """SIGINT and SIGTERM as a state."""

    def __init__(self) -> None:
        self._seen = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self._seen = True

    def pause(self) -> None:
        """Let some time pass.

        Raises:
            Interrupted: a signal has come.
        """
        if not self._seen:
            time.sleep(_PAUSE_SECONDS)
        if self._seen:
            raise Interrupted


def _run_in(directory: Path, store_url: str, interrupts: Interrupts) -> int:
    sockets = directory / SOCKETS
    engine = [sys.executable, "-P", "-m", "kvferry_client.demo", "--socket-dir", str(sockets)]
    log_file = directory / "daemon.log"
    with log_file.open("w+") as log, own_daemon(sockets, store_url, log) as daemon:
        url = wait_ready(daemon, sockets / ADMIN_SOCKET, log, interrupts)
        print(f"daemon    process {daemon.pid}, store {printable(url)}", flush=True)
        with child(engine) as client:
            while client.poll() is None:
                interrupts.pause()
            return 0 if client.returncode == 0 else 1


def _check_space(url: str, setting: str) -> None:
    """A disk that fills up only shows as chunks that were shed.

    Raises:
        Unavailable: the file system of a directory has too little room; with both numbers.
    """
    where = parse_store_url(url)
    if not isinstance(where, FileUrl):
        return
    place = Path(where.directory)
    while not place.exists():
        place = place.parent
    system = os.statvfs(place)
    free = system.f_bavail * system.f_frsize
    if free < NEEDED_BYTES:
        raise Unavailable(
            f"the demo stores {size(NEEDED_BYTES)} and the file system of {place} has {size(free)} "
            f"free: free some space, or name another directory in {setting}",
            reason="NO_SPACE",
        )


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Removed at the end, whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="kvferry-demo-"))
    try:
        if len(os.fsencode(directory / SOCKETS / LONGEST_SOCKET_NAME)) > SOCKET_PATH_BYTES:
            raise ConfigError(
                f"sockets below {directory} would have a path of more than {SOCKET_PATH_BYTES} "
                "bytes: set TMPDIR to a shorter directory",
                reason="TMPDIR",
                field="TMPDIR",
            )
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def own_daemon(sockets: Path, store_url: str, log: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that knows no setting but these."""
    config = sockets.parent / "config.toml"
    config.write_text('[integrity]\ncatalog_directory = ""\n')
    command = [sys.executable, "-P", "-m", "kvferry_server.cli", "serve", "--config", str(config)]
    command += ["--store-url", store_url, "--socket-dir", str(sockets), "--http-listen", ""]
    command += ["--log-level", "warning"]
    with child(command, log) as daemon:
        yield daemon


@contextmanager
def child(command: list[str], log: IO[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs in a session of its own, so that Ctrl-C on the terminal does not reach it."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("KVFERRY_")}
    process = subprocess.Popen(command, env=environ, stderr=log, start_new_session=True)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(
    daemon: subprocess.Popen[bytes], socket: Path, log: IO[str], interrupts: Interrupts
) -> str:
    """Wait until the daemon's store passed its preflight; return the store's URL."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        interrupts.pause()
        if daemon.poll() is not None:
            log.seek(0)
            raise Unavailable(f"the daemon ended:\n{log.read().strip()}", reason="DAEMON_ENDED")
        try:
            store = _ask_store(socket)
        except (Unavailable, FailedPrecondition):
            continue
        if store.problem:
            raise Unavailable(f"the store can't be used: {store.problem}", reason="STORE")
        if store.ready:
            return store.url
    raise Unavailable(f"the daemon is not ready after {START_SECONDS:g} s", reason="NOT_READY")


def _ask_store(socket: Path) -> admin_pb2.StoreStatus:
    with open_channel(socket) as channel, explained(socket):
        return (
            admin_pb2_grpc.AdminServiceStub(channel)
            .GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=CALL_SECONDS)
            .store
        )
