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
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e import run_e2e
from tests.e2e.engine_client import EngineOptions, EngineRun, Load, Result
from tests.e2e.proof import CHUNK_TOKENS, SMALL_CHUNK_BYTES, NotProven, Proof, Report

from .engines import ENVIRONMENT

MISS_TOKENS = 700
HIT_TOKENS = (512, 1024, 2048, 4000)
_ANSWER_TOKENS = 2
_WARM_UP = 3
_TIER_CHUNKS = 40
"""Room for one prompt of the longest kind, and little else."""
_STORE_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_REST_SECONDS = 1.3
"""An engine on the CPU spins for a second after it was asked, with a tier or without."""
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
    numbers = {"found": found, "misses": misses, "hits": hits}
    kind = type("Measurement", (_Measurement,), numbers)
    # Not in memory as all else: the containers have a /dev/shm of their own.
    work = Path(tempfile.mkdtemp(prefix="kvferry-bench-", dir="/tmp"))
    work.chmod(0o755)
    try:
        run_e2e.prove(kind, work / "bench", ENVIRONMENT / "bin" / "python", Report({}))
    finally:
        shutil.rmtree(work)
    return found


class _Measurement(Proof):
    """Feeds `found`; a subclass says how much."""

    found: FirstTokens
    misses: int
    hits: int

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
            self._misses(tiered, plain)
            for length in HIT_TOKENS if self.hits else ():
                self.found.hits[length] = self._hits(tiered, plain, length)

    def _misses(self, tiered: EngineRun, plain: EngineRun) -> None:
        for number in range(_WARM_UP + self.misses):
            sides = [(tiered, self.found.miss_with), (plain, self.found.miss_without)]
            for engine, seconds in sides[:: 1 if number % 2 else -1]:
                load = Load((_MISSES + number,), MISS_TOKENS, _ANSWER_TOKENS)
                [answer] = self._ask(engine, load, stores=engine is tiered).answers
                if number >= _WARM_UP:
                    seconds.append(answer.first_token_seconds)

    def _ask(self, engine: EngineRun, load: Load, *, stores: bool) -> Result:
        """Ask, and let what the answer has to store end, so that nobody else pays for it."""
        chunks = load.prompt_tokens // CHUNK_TOKENS if stores else 0
        wanted = self.counters()["chunks_store_stored"] + chunks
        result = engine.ask(load)
        end = time.monotonic() + _STORE_SECONDS
        while self.counters()["chunks_store_stored"] < wanted:
            if time.monotonic() > end:
                raise NotProven(f"{chunks} chunks were not stored in time")
            time.sleep(_LOOK_SECONDS)
        time.sleep(_REST_SECONDS)
        return result

    def _hits(
        self, tiered: EngineRun, plain: EngineRun, length: int
    ) -> tuple[list[float], list[float]]:
        loaded, computed = [], []
        numbers = [_HITS + 100 * HIT_TOKENS.index(length) + each for each in range(self.hits)]
        fillers = Load((_FILLERS, _FILLERS + 1), HIT_TOKENS[-1], _ANSWER_TOKENS)
        chunks = length // CHUNK_TOKENS
        for number in numbers:
            self._ask(tiered, Load((number,), length, _ANSWER_TOKENS), stores=True)
        for number in numbers:
            tiered.ask(fillers)  # so that the store alone holds the prompt
            time.sleep(_REST_SECONDS)
            before = self.loaded()
            load = Load((number,), length, _ANSWER_TOKENS)
            [hit] = self._ask(tiered, load, stores=False).answers
            came = self.loaded() - before
            self.check(came >= chunks - 1, f"{came} of {chunks} chunks came from the store")
            [computation] = self._ask(plain, load, stores=False).answers
            if number > numbers[0]:
                loaded.append(hit.first_token_seconds)
                computed.append(computation.first_token_seconds)
        return loaded, computed
