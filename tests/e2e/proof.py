"""What every scenario of the proof has: a container with daemon and store, engines, and checks.

Imports the standard library.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine_client import EngineOptions, EngineRun, EngineSetup, Load

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pod_client import PodClient

CHUNK_TOKENS = 128
"""vLLM's KV block on a CPU; one block is one chunk here."""
PROMPT_TOKENS = 700
CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
"""Of one prompt."""
FULL_TOKENS = CHUNKS * CHUNK_TOKENS
PROMPTS = tuple(range(10, 22))
"""Twelve prompts of five chunks fit neither into `small_engine`'s GPU cache nor its CPU tier."""
SMALL_CHUNK_BYTES = 524_288
SMALL_TIER_CHUNKS = 24
WAIT_SECONDS = 120.0
MAX_ROUNDS = 4
ROUND_SECONDS = 5.0


class NotProven(RuntimeError):
    """Something is not as promised; the text says what."""


@dataclass(slots=True)
class Report:
    """The output of a scenario: progress, and what it showed.

    Args:
        cold: answers of engines without a tier, by kind of engine; shared by all scenarios.
    """

    cold: dict[str, dict[int, list[int]]]
    began: float = field(default_factory=time.monotonic)
    checks: int = 0

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)  # noqa: T201

    def check(self, holds: bool, text: str) -> None:
        """Count what holds, stop at what doesn't. Raises NotProven."""
        if not holds:
            raise NotProven(text)
        self.checks += 1
        self.say(f"  ok: {text}")


class Proof:
    """The base of a scenario.

    Args:
        pod: the container with S3 server and daemon.
        setup: how engines are run.
        report: where the lines go.
    """

    def __init__(self, pod: PodClient, setup: EngineSetup, report: Report) -> None:
        self.pod = pod
        self.setup = setup
        self.report = report
        self.say = report.say
        self.check = report.check

    def run(self) -> None:
        """All of it. Raises NotProven, EngineFailed, PodFailed."""
        raise NotImplementedError

    def start_daemon(self, verify: str = "when-known") -> None:
        """Start it and wait until its store has passed the preflight."""
        info = self.pod.ask("start_daemon", verify=verify)
        self.say(f"kvferry {info['version']} serves {info['store']} ({info['settings']})")

    def counters(self) -> dict[str, int]:
        """The daemon's counters."""
        counters: dict[str, int] = self.pod.ask("info")["counters"]
        return counters

    def loaded(self) -> int:
        """Chunks that the running daemon has loaded."""
        return self.counters()["chunks_load_loaded"]

    def wait_until(self, holds: Callable[[], bool], text: str) -> None:
        """Count what becomes true in time. Raises NotProven."""
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise NotProven(f"{text}: not so after {WAIT_SECONDS:.0f} s")
            time.sleep(0.5)
        self.check(True, text)

    def wait_stored(self, chunks: int) -> None:
        """Wait for so many whole objects in S3. Raises NotProven."""
        self.wait_until(lambda: self.stored() >= chunks, f"S3 holds {chunks} chunks")

    def stored(self) -> int:
        """Whole objects in S3 now."""
        objects: list[dict[str, Any]] = self.pod.ask("objects")
        return sum(not each["zeros"] for each in objects)

    def store_all(self, engine: EngineRun, expected: dict[int, list[int]]) -> None:
        """Ask all prompts until their full chunks are in S3. Raises NotProven.

        On a busy machine some get lost: a CPU tier that is full of stores takes no more, and a
        store without a core fails. What is computed again is stored again.
        """
        for _ in range(MAX_ROUNDS):
            got = engine.ask(Load(PROMPTS))
            self.check_tokens(got.tokens, expected, "the cold run's while chunks are stored")
            time.sleep(ROUND_SECONDS)
            if self.stored() >= CHUNKS * len(PROMPTS):
                break
        self.wait_stored(CHUNKS * len(PROMPTS))

    def check_tokens(
        self, got: dict[int, list[int]], expected: dict[int, list[int]], whose: str
    ) -> None:
        """Every prompt was answered, and as expected. Raises NotProven."""
        wrong = [number for number in expected if got.get(number) != expected[number]]
        self.check(
            not wrong and got.keys() == expected.keys(),
            f"the greedy tokens of all {len(expected)} prompts are {whose}"
            + (f" (not so: prompts {wrong})" if wrong else ""),
        )


def make_model(python: Path, directory: Path, seed: int = 0, *options: str) -> None:
    """Write the model, or an adapter, with the engine's Python, which has torch."""
    script = Path(__file__).with_name("make_model.py")
    subprocess.run([python, script, directory, str(seed), *options], check=True)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)


def small_engine(**changes: Any) -> EngineOptions:
    """An engine that must go to the store for a prompt it has seen some prompts ago.

    Its arithmetic is 32 bits wide, so that no token depends on what else is in the batch.
    """
    arguments = {"dtype": "float32", "num_gpu_blocks_override": 20} | changes.pop("arguments", {})
    return EngineOptions(arguments, cpu_bytes=SMALL_TIER_CHUNKS * SMALL_CHUNK_BYTES, **changes)


def cold_tokens(proof: Proof, options: EngineOptions) -> dict[int, list[int]]:
    """The answers of an engine without kvferry, each prompt computed from its first token."""
    kind = repr(options)
    if kind not in proof.report.cold:
        with EngineRun(proof.setup, "cold", options) as engine:
            result = engine.ask(Load(PROMPTS))
        proof.check(result.cached_tokens == 0, "a cold run, without a kvferry tier, cached nothing")
        proof.report.cold[kind] = result.tokens
    return proof.report.cold[kind]
