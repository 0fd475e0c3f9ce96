"""Commands and daemons as processes of their own, and a client to give a daemon work."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry_client import Client, JobResult
from tests.support.processes import clean_environment

COMMAND = [sys.executable, "-m", "kvferry_server.cli"]
GUARD_SECONDS = 60.0
SLOT_BYTES = 4096
SLOTS = 16


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    status: int
    out: str
    err: str
    seconds: float


def environment(**extra: str) -> dict[str, str]:
    """A clean environment: no proxies, no AWS settings, no checksum files."""
    kept = {k: v for k, v in clean_environment().items() if not k.startswith("KVFERRY_")}
    return kept | {"KVFERRY_CATALOG_DIR": ""} | extra


def kvferry(*arguments: str, env: dict[str, str] | None = None) -> Finished:
    """Run one command to its end."""
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=env or environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=GUARD_SECONDS,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def works(command: Sequence[str]) -> bool:
    """Whether a command is there and ends well."""
    program = shutil.which(command[0])
    return (
        program is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


class Daemon:
    """`kvferry serve` on a socket directory below `root`."""

    def __init__(
        self,
        root: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.sockets = root / "run"
        self._log = root / "serve.log"
        command = [*prefix, *COMMAND, "serve", "--socket-dir", str(self.sockets), *arguments]
        if "--http-listen" not in arguments:
            command += ["--http-listen", ""]
        if not any(each in arguments for each in ("--store-url", "--config")):
            command += ["--store-url", (root / "store").as_uri()]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=env or environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """Everything that it printed, from all daemons with this root."""
        return self._log.read_text()

    def wait_serving(self) -> None:
        """Wait until its sockets answer."""
        self._wait_log("serving on")

    def wait_ready(self, starts: int = 1) -> None:
        """Wait until its store passed the preflight; `starts` counts daemons with this root."""
        self._wait_log(": ready: ", starts)

    def _wait_log(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.log.count(text) >= times or self.process.poll() is not None)
        assert self.process.poll() is None, self.log

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; return the exit status and how long the end took."""
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(GUARD_SECONDS)
        return status, time.monotonic() - began

    def kill(self) -> None:
        """End it and what it started. May be repeated."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def attached(sockets: Path) -> Iterator[Client]:
    """A client with a small region that is attached."""
    descriptor = os.memfd_create("kvferry-cli-test")
    os.ftruncate(descriptor, SLOTS * SLOT_BYTES)
    region = mmap.mmap(descriptor, SLOTS * SLOT_BYTES)
    os.close(descriptor)
    region[:] = secrets.token_bytes(len(region))
    view = memoryview(region).cast("B", shape=[SLOTS, SLOT_BYTES])
    client = Client(sockets, view, namespace="test", engine_id="engine-of-test")
    try:
        assert client.wait_attached(GUARD_SECONDS), client.last_error
        yield client
    finally:
        client.close()


def result_of(client: Client, job_id: int) -> JobResult:
    """Wait for one job."""
    assert client.wait_results(GUARD_SECONDS)
    [result] = client.take_results()
    assert result.job_id == job_id
    return result


def key(number: int) -> bytes:
    """A key."""
    return number.to_bytes(32) + bytes(4)
