"""The pages that install something, walked from a copy of the checkout to a running daemon.

`make walk`: needs root, a network and grpcurl of the group `matrix`. Each walk starts with nothing
but Debian's or this machine's Python, make and pip; a fresh virtual environment plays vLLM's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import find_binary

from . import kinds, sandbox
from .pages import ROOT
from .script import READY, outputs, script_of

MEGABYTE = 1_000_000
SECONDS = 900
SYSTEM = "/usr/bin:/bin:/usr/sbin:/sbin"
OTHER_USER = "docs/systemd.md"
"""Its daemon has a user of its own, who has to be able to read the Python: the system's."""
NEEDS_GROUP_MATRIX = "grpcurl"
CREDENTIALS = """\
cp ~/.aws/credentials /etc/kvferry/credentials
chown root:kvferry /etc/kvferry/credentials && chmod 0640 /etc/kvferry/credentials
chmod 0600 /etc/kvferry/environment
echo "AWS_ENDPOINT_URL_S3=$AWS_ENDPOINT_URL_S3" >> /etc/kvferry/environment
useradd --system vllm"""
FULLY_WALKED: dict[str, dict[str, str]] = {
    "README.md": {},
    "docs/quickstart.md": {},
    "docs/install.md": {},
    "docs/systemd.md": {"sudo usermod": CREDENTIALS},
}
"""Pages, and what they say in words only, by the start of the line that it comes before."""


def leave_out(line: str) -> bool:
    """Whether a line needs more than this environment and namespaces."""
    return bool(kinds.FETCHES.match(line)) or line.startswith(NEEDS_GROUP_MATRIX)


def copy_of_the_checkout(target: Path) -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    for name in listing:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.mark.walk
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("page", FULLY_WALKED)
def test_a_page_works_from_a_checkout_on(page: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    copy_of_the_checkout(home)
    tools = tmp_path / "tools"
    shutil.copytree(Path(__file__).parent / "shims", tools)
    grpcurl = find_binary("grpcurl")
    assert grpcurl, "install the group matrix: make walk"
    (tools / "grpcurl").symlink_to(grpcurl)
    base = SYSTEM if page == OTHER_USER else f"{sys.base_prefix}/bin:{SYSTEM}"
    path = f"$HOME/vllm-env/bin:{tools}:{base}"
    start = (
        f'export PATH="{path}"\npython3 -m venv ~/vllm-env\n'
        f"ENGINE_PYTHON=~/vllm-env/bin/python\n{READY}"
    )
    script = start + script_of(page, before=FULLY_WALKED[page])
    done = sandbox.walk(script, tmp_path, base, network=True, seconds=SECONDS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    look_at(page, home, outputs(done.stdout))


def look_at(page: str, home: Path, printed: dict[str, str]) -> None:
    """What the page promises of the outcome."""
    if page == "README.md":
        files = [file for file in (home / "kv").rglob("*") if file.is_file()]
        assert sum(file.lstat().st_size for file in files) < 500 * MEGABYTE
        assert not any("torch" in file.relative_to(home).parts for file in files)
        assert any('"status": "SERVING"' in text for text in printed.values())
    if page == "docs/quickstart.md":
        (status,) = (text for line, text in printed.items() if " status " in line)
        assert re.search(r"chunks_load_loaded +256\n", status)
    if page == "docs/systemd.md":
        (status,) = (text for line, text in printed.items() if " status " in line)
        assert "store     s3://bucket/prefix: ready" in status
        (check,) = (
            text for line, text in printed.items() if " kvferry check " in line.replace("/", " ")
        )
        assert "store s3://bucket/prefix: ready" in check
        (journal,) = (text for line, text in printed.items() if line.startswith("journalctl"))
        assert ": ready: " in journal
