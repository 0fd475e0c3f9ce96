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

    def ask(self, name: str, options: EngineOptions, *adapters: str) -> list[Result]:
        """The answers of a new engine with each of the adapters, "" for none."""
        with EngineRun(self.setup, name, options) as engine:
            results = [engine.ask(Load(NUMBERS, adapter=adapter)) for adapter in adapters or [""]]
            if options.tier:
                self.wait_stored(ALL_CHUNKS * self.sets)
        return results

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

    sets = 0
    """How many sets of chunks the store is to hold by now."""


class SamePath(Identity):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        self.start_daemon()
        [cold_a] = self.ask("cold-a", small_engine(tier=False))
        self.sets = 1
        self.miss(*self.ask("a", small_engine()), cold_a, "model A's")
        make_model(self.setup.python, self.setup.model, 1)
        [cold_b] = self.ask("cold-b", small_engine(tier=False))
        self.check(cold_a.tokens != cold_b.tokens, "model B answers otherwise, at A's path")
        self.sets = 2
        self.miss(*self.ask("b", small_engine()), cold_b, "model B's")
        make_model(self.setup.python, self.setup.model, 0)
        self.hit(*self.ask("a-again", small_engine()), cold_a, "model A's")


class Adapters(Identity):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        self.start_daemon()
        cold, warm = (small_engine(arguments=LORA, tier=tier) for tier in (False, True))
        x, y = self._make("x", 1), self._make("y", 2)
        plain, cold_x, cold_y = self.ask("cold", cold, "", x, y)
        self.check(
            plain.tokens != cold_x.tokens != cold_y.tokens != plain.tokens,
            "the bare model, adapter X and adapter Y answer each in its way",
        )
        self.sets = 2
        got_plain, got_x = self.ask("plain-and-x", warm, "", x)
        self.miss(got_plain, plain, "the bare model's")
        self.miss(got_x, cold_x, "adapter X's")
        self._make("x", 2)
        self.say("adapter Y is at X's path now, under X's name")
        self.sets = 3
        self.miss(*self.ask("y", warm, x), cold_y, "adapter Y's")
        self._make("x", 1)
        self.hit(*self.ask("x-again", warm, x), cold_x, "adapter X's")

    def _make(self, name: str, seed: int) -> str:
        path = self.setup.adapters / name
        make_model(self.setup.python, path, seed, "--adapter")
        return str(path)
