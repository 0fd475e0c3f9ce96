from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import World, running


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A path that does not exist yet, short enough for a socket."""
    parent = Path(tempfile.mkdtemp(prefix="kvf-"))
    yield parent / "s"
    shutil.rmtree(parent)


@pytest.fixture
def world(socket_dir: Path) -> Iterator[World]:
    with running(socket_dir) as found:
        yield found
