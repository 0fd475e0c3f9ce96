"""The engine-side clean-up removes regions that nobody has open, and no other file."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry_client.cleanup import Fate, clean, main

MIB = 1 << 20
HOLD_MAPPED = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
region = mmap.mmap(descriptor, 0)
os.close(descriptor)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shm() -> Iterator[Path]:
    directory = Path("/dev/shm") / f"kvferry-cleanup-{uuid.uuid4().hex}"
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


def region(shm: Path, name: str) -> Path:
    path = shm / f"vllm_offload_{name}.mmap"
    path.write_bytes(bytes(8 * MIB))
    return path


def mapper(command: list[str], path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*command, sys.executable, "-c", HOLD_MAPPED, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "mapped\n"
    return process


def test_M02_a_region_that_nobody_has_open_is_removed(shm):
    path = region(shm, "dead")
    assert clean(shm) == {path: Fate.REMOVED}
    assert not path.exists()


def test_M02_a_region_that_a_live_process_has_mapped_is_kept(shm):
    path = region(shm, "live")
    with mapper([], path) as process:
        assert clean(shm) == {path: Fate.IN_USE}
        assert path.stat().st_size == 8 * MIB
        process.communicate("")
    assert clean(shm) == {path: Fate.REMOVED}


def test_M02_a_region_that_another_container_has_mapped_is_kept(shm):
    """Its process can't be seen from here, as in a pod whose containers share /dev/shm."""
    sandbox = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc"]
    if not shutil.which("bwrap") or subprocess.run([*sandbox, "true"], check=False).returncode:
        pytest.skip("no namespaces here")
    path = region(shm, "elsewhere")
    with mapper(sandbox, path) as process:
        assert clean(shm) == {path: Fate.IN_USE}
        process.communicate("")


def test_M02_a_region_that_this_process_has_open_is_kept(shm):
    path = region(shm, "own")
    with path.open("r+b") as file:
        assert clean(shm) == {path: Fate.IN_USE}
        mapped = mmap.mmap(file.fileno(), 0)
    assert clean(shm) == {path: Fate.IN_USE}
    mapped.close()


def test_M02_other_files_are_not_looked_at(shm):
    (shm / "psm_1234").write_text("")
    (shm / "vllm_offload_x.txt").write_text("")
    os.mkfifo(shm / "vllm_offload_fifo.mmap")
    (shm / "target").write_text("")
    (shm / "vllm_offload_link.mmap").symlink_to(shm / "target")
    assert set(clean(shm).values()) == {Fate.UNKNOWN}
    assert len(list(shm.iterdir())) == 5


def test_a_dry_run_removes_nothing(shm, capsys):
    path = region(shm, "dead")
    assert main(["--directory", str(shm), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{path}: nobody uses it; would be removed\n"
    assert path.exists()
    assert main(["--directory", str(shm)]) == 0
    assert capsys.readouterr().out == f"{path}: removed\n"
    assert main(["--directory", str(shm)]) == 0


def test_the_command_runs_as_a_module(shm):
    region(shm, "dead")
    done = subprocess.run(
        [sys.executable, "-m", "kvferry_client.cleanup", "--directory", str(shm)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "removed" in done.stdout
