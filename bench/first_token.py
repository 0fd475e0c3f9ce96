"""Cell: time to first token in a real engine on this machine's CPU.

Two engines are up at once, one with kvferry's tier and one without any, and get the same prompts in
turn. A prompt that nobody has seen is a miss: it shows what the tier costs. A prompt that the store
holds, and neither the engine's cache nor its CPU tier, is a hit: its time stands beside computing
it anew, by the prompt's length. The model is tiny and random, so that computing is cheap here: the
break-even length says nothing of a real model, the cost of a miss does.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e import run_e2e
from tests.e2e.engine_client import EngineOptions, EngineRun, Load
from tests.e2e.proof import CHUNK_TOKENS, SMALL_CHUNK_BYTES, Proof, Report

from .engines import ENVIRONMENT

MISS_TOKENS = 700
HIT_TOKENS = (512, 1024, 2048, 4000)
_ANSWER_TOKENS = 2
_WARM_UP = 3
_TIER_CHUNKS = 40
"""Room for one prompt of the longest kind, and little else."""
_MISSES, _HITS, _FILLERS = 20_000, 30_000, 40_000
"""Numbers of prompts."""


@dataclass
class FirstTokens:
    """Seconds to the first token, pair by pair."""

    miss_with: list[float] = field(default_factory=list)
    miss_without: list[float] = field(default_factory=list)
    hits: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)
    """By prompt length: loaded from the store, and computed."""


def measure(misses: int, hits: int) -> FirstTokens:
    """Run both engines.

    Raises:
        NotProven, EngineFailed, PodFailed: something did not run as it should.
    """
    found = FirstTokens()

    class Measurement(Proof):
        """Feeds `found`."""

        def run(self) -> None:
            self.start_daemon()
            options = {
                "arguments": {
                    "dtype": "float32",
                    "max_model_len": 4096,
                    "max_num_batched_tokens": 4096,
                    "num_gpu_blocks_override": _TIER_CHUNKS,
                },
                "cpu_bytes": _TIER_CHUNKS * SMALL_CHUNK_BYTES,
                "cores": "0",
            }
            with (
                EngineRun(self.setup, "with", EngineOptions(**options)) as tiered,
                EngineRun(self.setup, "without", EngineOptions(**options, tier=False)) as plain,
            ):
                _misses(found, tiered, plain, misses)
                for length in HIT_TOKENS:
                    found.hits[length] = self._hits(tiered, plain, length, hits)

        def _hits(
            self, tiered: EngineRun, plain: EngineRun, length: int, rounds: int
        ) -> tuple[list[float], list[float]]:
            loaded, computed = [], []
            numbers = [_HITS + 100 * HIT_TOKENS.index(length) + each for each in range(rounds)]
            fillers = Load((_FILLERS, _FILLERS + 1), HIT_TOKENS[-1], _ANSWER_TOKENS)
            chunks = length // CHUNK_TOKENS
            for number in numbers:
                stored = self.counters()["chunks_store_stored"]
                tiered.ask(Load((number,), length, _ANSWER_TOKENS))
                self.wait_until(
                    lambda: self.counters()["chunks_store_stored"] >= stored + chunks,  # noqa: B023
                    f"a prompt of {length} tokens is stored",
                )
            for number in numbers:
                tiered.ask(fillers)  # so that the store alone holds the prompt
                before = self.loaded()
                load = Load((number,), length, _ANSWER_TOKENS)
                [hit] = tiered.ask(load).answers
                came = self.loaded() - before
                self.check(came >= chunks - 1, f"{came} of {chunks} chunks came from the store")
                [computation] = plain.ask(load).answers
                if number > numbers[0]:
                    loaded.append(hit.first_token_seconds)
                    computed.append(computation.first_token_seconds)
            return loaded, computed

    # Not in memory as all else: the containers have a /dev/shm of their own.
    work = Path(tempfile.mkdtemp(prefix="kvferry-bench-", dir="/tmp"))
    work.chmod(0o755)
    try:
        run_e2e.prove(Measurement, work / "bench", ENVIRONMENT / "bin" / "python", Report({}))
    finally:
        shutil.rmtree(work)
    return found


def _misses(found: FirstTokens, tiered: EngineRun, plain: EngineRun, rounds: int) -> None:
    for number in range(_WARM_UP + rounds):
        sides = [(tiered, found.miss_with), (plain, found.miss_without)]
        for engine, seconds in sides[:: 1 if number % 2 else -1]:
            [answer] = engine.ask(Load((_MISSES + number,), MISS_TOKENS, _ANSWER_TOKENS)).answers
            if number >= _WARM_UP:
                seconds.append(answer.first_token_seconds)
