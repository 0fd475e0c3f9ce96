"""The outside of the engine's container: starts it, tells it what to do, ends it.

Leaves nothing behind. Imports the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from .inspection import process_tree
from .sandbox import CHECKOUT, ENGINE_UID, SOCKET_DIR, Mounts, engine_command, path_of

ANSWER_SECONDS = 900.0
END_SECONDS = 60.0
YIELDING_LOOKUP_SECONDS = 30.0
"""A client that yields may not get a core for the usual two."""
FRESH_NUMBER = 20_000
SHARED_MEMORY = Path("/dev/shm")


class EngineFailed(RuntimeError):
    """The engine ended without an answer, or took too long; the text ends with its output."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said to one prompt.

    Args:
        number: of the prompt.
        tokens: the greedy answer.
        cached_tokens: tokens of the prompt whose KV was not computed.
        began: when it was asked, on the monotonic clock.
        first_token_seconds: how long the first token took.
        ended: when the answer was complete, on the monotonic clock.
    """

    number: int
    tokens: list[int]
    cached_tokens: int
    began: float
    first_token_seconds: float
    ended: float


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one load.

    Args:
        vllm_version: of the engine.
        metrics: vLLM's metrics of offloading that are not zero.
        answers: in the order in which they ended.
    """

    vllm_version: str
    metrics: dict[str, float]
    answers: list[Answer]

    @property
    def tokens(self) -> dict[int, list[int]]:
        """The answer to each prompt; the last one, if it was asked several times."""
        return {each.number: each.tokens for each in self.answers}

    @property
    def cached_tokens(self) -> int:
        """Of all prompts."""
        return sum(each.cached_tokens for each in self.answers)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is asked.

    Args:
        numbers: prompts, each made from its number.
        prompt_tokens: length of each.
        answer_tokens: length of each answer.
        streams: prompts at a time.
        seconds: go round again until so much time is over; 0 for one round.
        replica: the data-parallel rank to ask; None for vLLM's choice.
        companion: decode something else all the time, which needs no chunk.
        fresh: one stream more, of prompts that never come twice, numbered from FRESH_NUMBER.
        adapter: directory of a LoRA adapter; empty for none.
    """

    numbers: tuple[int, ...]
    prompt_tokens: int = 700
    answer_tokens: int = 24
    streams: int = 1
    seconds: float = 0.0
    replica: int | None = None
    companion: bool = False
    fresh: bool = False
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How one engine differs from another.

    Args:
        arguments: for vLLM's `EngineArgs`.
        tier: whether there is a kvferry tier.
        cpu_bytes: size of the CPU tier.
        cores: the core of each worker, as VLLM_CPU_OMP_THREADS_BIND wants it. A connector reserves
            a core more, and the number of threads changes the tokens.
        step_times: where to record the engine's steps; empty for nowhere.
        yielding: let daemon and store go first: workers that wait for each other spin, and two of
            them leave nothing of two cores.
    """

    arguments: dict[str, Any]
    tier: bool = True
    cpu_bytes: int = 64 << 20
    cores: str = "0"
    step_times: str = ""
    yielding: bool = False


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What all runs have in common.

    Args:
        python: the environment with vLLM.
        model: directory of the model.
        adapters: directory of LoRA adapters, if some are made.
        home: a directory of the engine's own.
        shared: the directory that the daemon sees too.
        logs: directory for the engines' output.
    """

    python: Path
    model: Path
    adapters: Path
    home: Path
    shared: Path
    logs: Path

    @property
    def readable(self) -> tuple[Path, ...]:
        """What the engine may read."""
        return tuple(path for path in (self.model, self.adapters) if path.exists())

    def command(self, options: EngineOptions) -> list[str]:
        """The engine's command line, container included."""
        tier: dict[str, Any] = {"type": "kvferry", "socket_dir": str(SOCKET_DIR)}
        if options.yielding:
            tier["lookup_timeout_s"] = YIELDING_LOOKUP_SECONDS
        request = {
            "model": str(self.model),
            "tiers": [tier] if options.tier else [],
            "cpu_bytes": options.cpu_bytes,
            "step_times": options.step_times,
            "arguments": options.arguments,
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
            "VLLM_CPU_OMP_THREADS_BIND": options.cores,
        }
        mounts = Mounts(self.shared, readable=self.readable, writable=(self.home,))
        run = [str(self.python), "-m", "tests.e2e.engine", json.dumps(request)]
        if options.yielding:
            run = ["nice", "-n", "10", *run]
        return engine_command(mounts, self.python, variables, *run)


class EngineRun:
    """One engine, alive until the end of the `with` block; its output is `<name>.log`."""

    def __init__(self, setup: EngineSetup, name: str, options: EngineOptions) -> None:
        self._log = setup.logs / f"{name}.log"
        self._before = set(shared_memory_files())
        self._guard: threading.Timer | None = None
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                setup.command(options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={"PATH": path_of(setup.python)},
                text=True,
                start_new_session=True,
            )

    @property
    def pids(self) -> list[int]:
        """All processes of the engine: what is below the container's launcher."""
        return process_tree(self._process.pid)[1:]

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def begin(self, load: Load) -> None:
        """Have a load begun, as soon as the engine is up; `result` waits for its end."""
        stdin = self._process.stdin
        if stdin is None:
            raise EngineFailed("the engine has no standard input")
        self._guard = threading.Timer(ANSWER_SECONDS + load.seconds, self._kill)
        self._guard.start()
        with contextlib.suppress(BrokenPipeError):
            stdin.write(f"{json.dumps(asdict(load))}\n")
            stdin.flush()

    def result(self) -> Result:
        """What came of the load. Raises EngineFailed."""
        with self._log.open("a") as log:
            for line in self._process.stdout or ():
                log.write(line)
                if line.startswith("RESULT "):
                    if self._guard:
                        self._guard.cancel()
                    said: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                    answers = [Answer(**each) for each in said.pop("answers")]
                    return Result(**said, answers=answers)
        raise EngineFailed(f"no answer:\n{self.output[-6000:]}")

    def ask(self, load: Load) -> Result:
        """Have a load done. Raises EngineFailed."""
        self.begin(load)
        return self.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._guard:
            self._guard.cancel()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=END_SECONDS)
        self._kill()
        self._process.wait()
        for path in set(shared_memory_files()) - self._before:
            path.unlink()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def region_files() -> list[Path]:
    """The regions of the engine's user in this machine's shared memory."""
    return [path for path in shared_memory_files() if path.suffix == ".mmap"]


def shared_memory_files() -> list[Path]:
    """Regions, and what workers talk over: killed processes leave theirs behind."""
    files = [*SHARED_MEMORY.glob("vllm_offload_*.mmap"), *SHARED_MEMORY.glob("vllm_dist_*")]
    return [path for path in files if path.stat().st_uid == ENGINE_UID]
