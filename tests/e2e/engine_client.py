"""The outside of the engine's container: starts one vLLM run, gets its answer, ends it.

Leaves nothing behind. Imports the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from .inspection import process_tree
from .sandbox import CHECKOUT, ENGINE_UID, SOCKET_DIR, Mounts, engine_command, path_of

ANSWER_SECONDS = 300.0
END_SECONDS = 60.0
SHARED_MEMORY = Path("/dev/shm")


class EngineFailed(RuntimeError):
    """The engine ended without an answer, or took too long; the text ends with its output."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said.

    Args:
        vllm_version: of the engine.
        cached_tokens: tokens of the prompt whose KV was not computed.
        tokens: the greedy answer.
        metrics: vLLM's metrics of offloading that are not zero.
        seconds: from the start of the process to the answer.
    """

    vllm_version: str
    cached_tokens: int
    tokens: list[int]
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What all runs have in common.

    Args:
        python: the environment with vLLM.
        model: directory of the model.
        home: a directory of the engine's own.
        shared: the directory that the daemon sees too.
        prompt_tokens: length of the prompt.
        answer_tokens: length of the answer.
    """

    python: Path
    model: Path
    home: Path
    shared: Path
    prompt_tokens: int
    answer_tokens: int

    def command(self) -> list[str]:
        """The engine's command line, container included."""
        request = {
            "model": str(self.model),
            "tier": {"type": "kvferry", "socket_dir": str(SOCKET_DIR)},
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
        }
        variables = {
            "PATH": path_of(self.python),
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.home),
            "USER": "engine",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # A connector reserves a core more, and the number of threads changes the tokens.
            "VLLM_CPU_OMP_THREADS_BIND": "0",
        }
        mounts = Mounts(self.shared, readable=(self.model,), writable=(self.home,))
        run = (str(self.python), "-m", "tests.e2e.engine", json.dumps(request))
        return engine_command(mounts, self.python, variables, *run)


class EngineRun:
    """One engine process, alive after its answer until the end of the `with` block."""

    def __init__(self, setup: EngineSetup, log: Path) -> None:
        self._log = log
        self._began = time.monotonic()
        self._leftovers = set(region_files())
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                setup.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={"PATH": path_of(setup.python)},
                text=True,
                start_new_session=True,
            )
        self._guard = threading.Timer(ANSWER_SECONDS, self._kill)
        self._guard.start()

    @property
    def pids(self) -> list[int]:
        """All processes of the engine: what is below the container's launcher."""
        return process_tree(self._process.pid)[1:]

    def answer(self) -> Answer:
        """Wait for it. Raises EngineFailed."""
        with self._log.open("a") as log:
            for line in self._process.stdout or ():
                log.write(line)
                if line.startswith("RESULT "):
                    said: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                    return Answer(**said, seconds=time.monotonic() - self._began)
        raise EngineFailed(f"no answer:\n{self._log.read_text(errors='replace')[-6000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.cancel()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=END_SECONDS)
        self._kill()
        self._process.wait()
        for path in set(region_files()) - self._leftovers:
            path.unlink()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def region_files() -> list[Path]:
    """The regions of the engine's user in this machine's shared memory."""
    files = SHARED_MEMORY.glob("vllm_offload_*.mmap")
    return [path for path in files if path.stat().st_uid == ENGINE_UID]
