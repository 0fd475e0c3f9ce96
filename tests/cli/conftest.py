"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.harness import Daemon
from tests.support.fault_server import FaultServer


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons that end with the test."""
    started: list[Daemon] = []

    def start(*arguments: str, **options) -> Daemon:
        daemon = Daemon(options.pop("root", tmp_path), *arguments, **options)
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.kill()


@pytest.fixture
def s3() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server
