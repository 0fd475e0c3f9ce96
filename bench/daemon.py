"""A daemon to measure: `kvferry serve` as users start it, in a directory of its own."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import clean_environment

from .workers.protocol import Worker, cpu_seconds

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.005


class Daemon:
    """A running `kvferry serve`."""

    def __init__(self, process: subprocess.Popen[bytes], sockets: Path, start: float) -> None:
        self._process = process
        self.socket_dir = str(sockets)
        self.start_seconds = start
        """From the start of the process to its store being ready."""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        return cpu_seconds(self.pid)

    def resident_bytes(self, kind: str = "VmRSS") -> int:
        """Resident memory; RssAnon is what belongs to no file and no region (see proc(5))."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"the kernel tells no {kind}")


@contextmanager
def running(
    url: str, environment: Mapping[str, str] | None = None, options: str = ""
) -> Iterator[Daemon]:
    """Start a daemon, wait until its store is ready, end it.

    Args:
        url: of the store; empty for a directory that is removed at the end.
        environment: variables that point at an S3 server.
        options: more of the configuration, TOML.

    Raises:
        RuntimeError: it did not start; the text is its log.
    """
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as name:
        directory = Path(name)
        sockets, log = directory / "run", directory / "log"
        config = directory / "config.toml"
        config.write_text(f'[store]\nurl = "{url or (directory / "store").as_uri()}"\n{options}')
        variables = {"KVFERRY_CATALOG_DIR": str(directory / "catalog"), **(environment or {})}
        command = [sys.executable, "-m", "kvferry_server.cli", "serve", "--config", str(config)]
        began = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--socket-dir", str(sockets), "--http-listen", ""],
                env=clean_environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            while ": ready: " not in log.read_text():
                if process.poll() is not None or time.perf_counter() > began + _START_SECONDS:
                    raise RuntimeError(f"the daemon did not start: {log.read_text()}")
                time.sleep(_LOOK_SECONDS)
            yield Daemon(process, sockets, time.perf_counter() - began)
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)


def engine_side(
    served: Daemon, chunks: int, chunk_bytes: int, *, open_jobs: int = 0, namespace: str = ""
) -> Worker:
    """The client alone, without vLLM, in a process of its own."""
    settings = {
        "socket_dir": served.socket_dir,
        "namespace": namespace or f"bench-{secrets.token_hex(8)}",
        "chunks": chunks,
        "chunk_bytes": chunk_bytes,
        "open_jobs": open_jobs,
    }
    return Worker("kvferry_client.bench", settings)
