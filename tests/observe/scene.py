"""A daemon with an engine's side at work and a Prometheus that watches, over any S3 server.

Imports the standard library and tests.support.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import Child, clean_environment, free_ports

from .prometheus import Prometheus

READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What runs.

    Args:
        directory: of the sockets and logs.
        port: of the daemon's HTTP listener.
    """

    directory: Path
    port: int
    daemon: Child
    load: Child
    prometheus: Prometheus

    @property
    def sockets(self) -> Path:
        """The daemon's."""
        return self.directory / "run"

    def requests(self) -> list[dict[str, Any]]:
        """What the engine's side did, second by second."""
        lines = (self.directory / "load.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def daemon_log(self) -> str:
        """All that the daemon wrote."""
        return (self.directory / "daemon.log").read_text()


@contextlib.contextmanager
def scene(bucket: str, environment: Mapping[str, str], config: str = "") -> Iterator[Scene]:
    """Everything started, and ended at the end."""
    with tempfile.TemporaryDirectory(prefix="kvferry-scene-") as name, contextlib.ExitStack() as on:
        directory = Path(name)
        (port,) = free_ports(1)
        file = directory / "config.toml"
        file.write_text(
            f'[store]\nurl = "s3://{bucket}/scene"\n[http]\nlisten = "127.0.0.1:{port}"\n'
            f'[sockets]\ndirectory = "{directory / "run"}"\n{config}'
        )
        variables = clean_environment(environment)
        daemon = Child(
            [sys.executable, "-m", "kvferry_server.cli", "serve", "--config", str(file)],
            directory / "daemon.log",
            variables,
        )
        on.callback(daemon.stop)
        daemon.wait_until(lambda: page(port, "/metrics", "kvferry_store_ready 1"), READY_SECONDS)
        load = Child(
            [sys.executable, "-m", "tests.observe.load", str(directory / "run")],
            directory / "load.log",
        )
        on.callback(load.stop)
        prometheus = Prometheus(directory, port)
        on.callback(prometheus.stop)
        yield Scene(directory, port, daemon, load, prometheus)


def page(port: int, path: str, text: str = "") -> bool:
    """Whether a page answers 200 and holds a text."""
    with contextlib.suppress(urllib.error.URLError, TimeoutError, ConnectionError):
        url = f"http://127.0.0.1:{port}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200 and text in answer.read().decode()
    return False
