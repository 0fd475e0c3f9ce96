"""docs/grpcurl.md, run as it stands with the real grpcurl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Child, clean_environment, find_binary

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.matrix


@pytest.fixture
def socket_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "run"
    daemon = Child(
        [
            *("kvferry", "serve", "--debug-attach-by-name", "--http-listen", ""),
            *("--store-url", f"file://{tmp_path}/store", "--socket-dir", str(directory)),
        ],
        tmp_path / "log",
        clean_environment(),
    )
    healthy = ["kvferry", "health", "--socket-dir", str(directory)]
    daemon.wait_until(
        lambda: (
            not subprocess.run(
                [str(find_binary("kvferry")), *healthy[1:]], capture_output=True, check=False
            ).returncode
        ),
        30,
    )
    yield directory
    daemon.stop()


def test_every_command_of_the_page_works(socket_dir: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "grpcurl.md").read_text()
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    region = f"kvferry-by-hand-{os.getpid()}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script.replace("kvferry-by-hand", region)],
            env=os.environ | {"PATH": path, "KVFERRY_SOCKET_DIR": str(socket_dir)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        Path("/dev/shm", region).unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    for expected in (
        "kvferry.v1.OffloadService",
        "PRESENCE_ABSENT",
        "CHUNK_OUTCOME_STORED",
        "CHUNK_OUTCOME_LOADED",
        "hello from slot 0",
    ):
        assert expected in done.stdout
