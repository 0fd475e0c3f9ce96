"""Runs docs/grpcurl.md and keeps what it shows: `python -m tests.repo.grpcurl_page` writes it anew.

Owns the run of the page's ```bash blocks as one script against a daemon, the ```text blocks with
their outputs, and which parts of an output differ from run to run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Child, clean_environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpcurl.md"
SHOWN_DIRECTORY = "/run/kvferry"
SHOWN_STORE = "file:///var/lib/kvferry/store"
_REGION = "kvferry-by-hand"
_MARK = "=== end of block"
_BLOCK = re.compile(r"^```bash\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_VARYING = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "HEX"),
    (re.compile(r'"[A-Za-z0-9+/]{42,44}=*"'), '"TOKEN"'),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z"), "TIME"),
    (re.compile(r'"\d+(\.\d+)?s"'), '"SECONDS"'),
)


@contextmanager
def daemon(root: Path) -> Iterator[Path]:
    """A daemon for the page; its socket directory."""
    directory = root / "run"
    served = Child(
        [
            *("kvferry", "serve", "--debug-attach-by-name", "--http-listen", ""),
            *("--store-url", f"file://{root}/store", "--socket-dir", str(directory)),
        ],
        root / "log",
        clean_environment(),
    )
    served.wait_until(lambda: ": ready: " in (root / "log").read_text(), 60)
    try:
        yield directory
    finally:
        served.stop()


def run(page: str, directory: Path, root: Path) -> list[str]:
    """The output of each block; paths as a daemon of the system has them.

    Raises:
        subprocess.CalledProcessError: a command of the page failed.
    """
    blocks = [match[1] for match in _BLOCK.finditer(page)]
    script = "".join(f"{block}echo '{_MARK}'\n" for block in blocks)
    region = f"{_REGION}-{os.getpid()}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script.replace(_REGION, region)],
            env=os.environ | {"PATH": path, "KVFERRY_SOCKET_DIR": str(directory)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    finally:
        Path("/dev/shm", region).unlink(missing_ok=True)
    text = done.stdout.replace(region, _REGION)
    text = text.replace(str(directory), SHOWN_DIRECTORY)
    text = text.replace(f"file://{root}/store", SHOWN_STORE)
    return [output.lstrip("\n") for output in text.split(f"{_MARK}\n")[:-1]]


def shown(page: str) -> list[str]:
    """The outputs that the page shows, empty where it shows none."""
    return [match[2] or "" for match in _BLOCK.finditer(page)]


def comparable(output: str) -> list[str]:
    """The lines of an output without what differs from run to run, in any order."""
    for pattern, word in _VARYING:
        output = pattern.sub(word, output)
    return sorted(line.rstrip(",") for line in output.splitlines())


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with these outputs in the place of those that it shows."""
    left = iter(outputs)

    def replace(match: re.Match[str]) -> str:
        output = next(left)
        text = f"\n```text\n{output}```\n" if output else ""
        return f"```bash\n{match[1]}```\n{text}"

    return _BLOCK.sub(replace, page)


def main() -> None:
    """Write the page anew."""
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory(prefix="kvferry-") as made:
        root = Path(made)
        with daemon(root) as directory:
            outputs = run(page, directory, root)
    PAGE.write_text(with_outputs(page, outputs))


if __name__ == "__main__":
    main()
