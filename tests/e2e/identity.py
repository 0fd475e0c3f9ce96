"""Engines whose KV differs though their configuration doesn't. Imports the standard library only.

`SamePath`: two models of one shape, random weights each, are mounted at one path one after the
other. `Adapters`: a LoRA adapter, and then another one of the same name at the same path. Objects
of one are never hits for the other, and still hits for their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine_client import EngineRun, Load
from .proof import CHUNKS, FULL_TOKENS, Proof, make_model, small_engine

if TYPE_CHECKING:
    from .engine_client import EngineOptions, Result

NUMBERS = (10, 11, 12)
ALL_CHUNKS = CHUNKS * len(NUMBERS)
ALL_TOKENS = FULL_TOKENS * len(NUMBERS)
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
SAME_PATH_DONE = (
    "two models with equal configs at one path, one after the other, never hit each other's "
    "chunks; the first one found its own again"
)
ADAPTERS_DONE = (
    "two LoRA adapters of one name at one path, one after the other, never hit each other's "
    "chunks nor the bare model's; the first one found its own again"
)


class Identity(Proof):
    """What both have in common; see the module's docstring."""

    def ask(self, name: str, options: EngineOptions, adapter: str = "") -> Result:
        """The answers of a new engine."""
        with EngineRun(self.setup, name, options) as engine:
            result = engine.ask(Load(NUMBERS, adapter=adapter))
            if options.tier:
                self.wait_until(lambda: self._open_chunks() == 0, "its stores are over")
        return result

    def miss(self, got: Result, cold: Result, whose: str) -> None:
        """It was computed from the first token, and right. Raises NotProven."""
        self.check(got.cached_tokens == 0, f"{whose} hit nothing of the other's")
        self.check_tokens(got.tokens, cold.tokens, f"{whose} own")

    def hit(self, got: Result, cold: Result, whose: str) -> None:
        """It came from the store, and is right. Raises NotProven."""
        self.check(
            got.cached_tokens == ALL_TOKENS, f"{whose} hit {got.cached_tokens} tokens, all its own"
        )
        self.check_tokens(got.tokens, cold.tokens, f"{whose} own, from the store")

    def _open_chunks(self) -> int:
        counters = self.counters()
        return ALL_CHUNKS * self.stored_sets - counters["chunks_store_stored"]

    stored_sets = 0
    """How many sets of chunks the store is to hold by now."""


class SamePath(Identity):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        self.start_daemon()
        cold_a = self.ask("cold-a", small_engine(tier=False))
        self.stored_sets = 1
        self.miss(self.ask("a", small_engine()), cold_a, "model A's")
        make_model(self.setup.python, self.setup.model, 1)
        cold_b = self.ask("cold-b", small_engine(tier=False))
        self.check(cold_a.tokens != cold_b.tokens, "model B answers otherwise, at A's path")
        self.stored_sets = 2
        self.miss(self.ask("b", small_engine()), cold_b, "model B's")
        make_model(self.setup.python, self.setup.model, 0)
        self.hit(self.ask("a-again", small_engine()), cold_a, "model A's")


class Adapters(Identity):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        self.start_daemon()
        path = str(self.setup.adapter)
        cold, warm = (small_engine(arguments=LORA, tier=tier) for tier in (False, True))
        self._make(1)
        plain = self.ask("cold-plain", cold)
        cold_x = self.ask("cold-x", cold, path)
        self.check(plain.tokens != cold_x.tokens, "the adapter changes the answers")
        self.stored_sets = 1
        self.miss(self.ask("plain", warm), plain, "the bare model's")
        self.stored_sets = 2
        self.miss(self.ask("x", warm, path), cold_x, "adapter X's")
        self._make(2)
        cold_y = self.ask("cold-y", cold, path)
        self.check(cold_x.tokens != cold_y.tokens, "adapter Y answers otherwise, at X's path")
        self.stored_sets = 3
        self.miss(self.ask("y", warm, path), cold_y, "adapter Y's")
        self._make(1)
        self.hit(self.ask("x-again", warm, path), cold_x, "adapter X's")

    def _make(self, seed: int) -> None:
        make_model(self.setup.python, self.setup.adapter, seed, "--adapter")
