"""What a miss costs: time to first token with a kvferry tier and without. Standard library only.

Two engines are up at once, and get the same prompts in turn, one request at a time, so that both
see the same machine. No prompt comes twice: each is a miss, and is stored afterwards. An engine
steps without a pause while stores are open, and both have the same core: so the next prompt comes
when they are over.
"""

from __future__ import annotations

import statistics
import time

from .engine_client import EngineRun, Load
from .proof import CHUNKS, Proof, small_engine

ROUNDS = 40
WARM_UP = 4
FIRST_PROMPT = 1000
SETTLE_SECONDS = 5.0
DONE = "time to first token of cold misses, measured in turn on an engine with the tier and without"


class Overhead(Proof):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        self.start_daemon()
        times: dict[str, list[float]] = {"with": [], "without": []}
        with (
            EngineRun(self.setup, "with", small_engine(cores="0")) as with_tier,
            EngineRun(self.setup, "without", small_engine(cores="0", tier=False)) as without,
        ):
            engines = {"with": with_tier, "without": without}
            for number in range(WARM_UP + ROUNDS):
                names = list(engines) if number % 2 else list(engines)[::-1]
                for name in names:
                    load = Load((FIRST_PROMPT + number,), answer_tokens=2)
                    [answer] = engines[name].ask(load).answers
                    if number >= WARM_UP:
                        times[name].append(answer.first_token_seconds)
                    if name == "with":
                        self._settle(CHUNKS * (number + 1))
        stored = self.counters()["chunks_store_stored"]
        self.check(stored > 0, f"the engine with the tier stored {stored} chunks meanwhile")
        medians = {name: 1000 * statistics.median(each) for name, each in times.items()}
        ratios = [a / b for a, b in zip(times["with"], times["without"], strict=True)]
        self.say(
            f"  first token of {ROUNDS} cold misses, median: {medians['with']:.1f} ms with the "
            f"tier, {medians['without']:.1f} ms without, ratio "
            f"{medians['with'] / medians['without']:.3f}; median of the pairs' ratios "
            f"{statistics.median(ratios):.3f}"
        )

    def _settle(self, chunks: int) -> None:
        """Wait until so many chunks are stored, or for a while."""
        end = time.monotonic() + SETTLE_SECONDS
        while self.counters()["chunks_store_stored"] < chunks and time.monotonic() < end:
            time.sleep(0.02)
