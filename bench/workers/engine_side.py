"""vLLM's scheduler side with one secondary tier: kvferry's or the in-process `obj` tier.

The real `TieringOffloadingManager` on a real region, driven step by step as the scheduler drives
it, at a fixed pace. Runs in vLLM's environment. Every call of the tier is timed on the thread that
makes it: that is what a tier costs the engine's steps.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("NIXL_TELEMETRY_ENABLE", "1")  # without it the obj tier of 0.32 raises
os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
from vllm import __version__
from vllm.v1.kv_offload.base import LookupResult, make_offload_key

from kvferry_client.vllm_plugin import register
from tests.vllm.conftest import Engine

from .protocol import serve

STEP_SECONDS = 0.002
"""A step of the engine; a model's are longer, and ask the tier less often for the same bytes."""
CHUNKS_PER_REQUEST = 16
TOKENS_PER_CHUNK = 16
_SECONDS = 300.0
METHODS = (
    "lookup",
    "submit_store",
    "submit_load",
    "get_finished_jobs",
    "has_pending_work",
    "on_schedule_end",
    "on_new_request",
    "on_request_finished",
    "take_events",
    "get_stats",
)
"""What the scheduler's thread calls."""


class EngineSide:
    """One engine.

    Args:
        tier: the entry of `secondary_tiers`.
        chunks: of one round.
        chunk_bytes: length of each.
    """

    def __init__(self, tier: dict[str, Any], chunks: int, chunk_bytes: int) -> None:
        register()
        self._chunks = chunks
        self._engine = Engine(
            [tier],
            worker_kv_bytes_per_block=chunk_bytes,
            extra_config={"cpu_bytes_to_use": chunks * chunk_bytes, "secondary_tiers": [tier]},
        )
        if tier["type"] == "kvferry" and not self._engine.tier._client.wait_attached(30):
            raise RuntimeError("the tier did not attach")
        rows = self._engine.rows
        rows[:] = np.random.default_rng(0).integers(0, 256, rows.shape, np.uint8)
        self._original = rows.copy()
        self._micros: list[float] = []
        self._timer: list[float] = []
        """What the same clock shows for a call of nothing, once a step."""
        self._nothing = self._timed(lambda: None, self._timer)
        self._requests = 0
        for name in METHODS:
            if hasattr(self._engine.tier, name):
                method = getattr(self._engine.tier, name)
                setattr(self._engine.tier, name, self._timed(method, self._micros))

    def version(self) -> str:
        """Of vLLM."""
        return str(__version__)

    def run(self, name: str) -> dict[str, Any]:
        """Store a round of new chunks, drop them from the CPU tier, find and load them.

        Returns:
            Seconds of each phase, the calls' CPU microseconds on the scheduler's thread (without
            what the clock itself takes), and the CPU seconds of the tier: those calls and all
            threads but the scheduler's.
        """
        engine = self._engine
        keys = self._keys(name, self._chunks)
        self._micros.clear()
        self._timer.clear()
        others = _other_threads_seconds()
        began = time.perf_counter()
        slots = self._store(keys)
        store_seconds = time.perf_counter() - began
        engine.forget()
        engine.rows[:] = 0
        request = self._request()
        began = time.perf_counter()
        verdicts = self._ask_tier(keys, request)
        lookup_seconds = time.perf_counter() - began
        if set(verdicts) != {LookupResult.HIT}:
            raise RuntimeError("a stored chunk was not found")
        began = time.perf_counter()
        self._step_until(lambda: self._all_hit(keys, request))
        load_seconds = time.perf_counter() - began
        clock = statistics.median(self._timer)
        micros = [max(0.0, each - clock) for each in self._micros]
        others = _other_threads_seconds() - others
        self._check(keys, request, slots)
        engine.manager.on_request_finished(request)
        engine.forget()
        return {
            "store_seconds": store_seconds,
            "lookup_seconds": lookup_seconds,
            "load_seconds": load_seconds,
            "call_micros": micros,
            "tier_cpu_seconds": others + sum(micros) / 1e6,
        }

    def put(self, name: str, count: int) -> None:
        """Store so many chunks, a regionful at a time."""
        keys = self._keys(name, count)
        for at in range(0, count, self._chunks):
            self._store(keys[at : at + self._chunks])
            self._engine.forget()

    def lookup(self, name: str, count: int, *, present: bool) -> float:
        """Seconds until a new request knows where its prefix ends, as the scheduler finds it.

        The scheduler asks key after key, step after step, until no verdict before the first miss
        is open.
        """
        keys = self._keys(name, count)
        request = self._request()
        for number, key in enumerate(keys, 1):  # as the scheduler does before it asks
            request.set_offload_key_position(key, number * TOKENS_PER_CHUNK)
        began = time.perf_counter()
        hits = self._prefix(keys, request)
        seconds = time.perf_counter() - began
        self._engine.manager.on_request_finished(request)
        if hits != (count if present else 0):
            raise RuntimeError(f"{hits} of {count} keys were found")
        return seconds

    def close(self) -> None:
        """Shut the engine down."""
        del self._engine.rows
        self._engine.manager.shutdown()

    def _timed(self, method: Callable[..., Any], micros: list[float]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return method(*args, **options)
            finally:
                micros.append((time.thread_time_ns() - began) / 1000)

        return timed

    def _request(self) -> Any:
        self._requests += 1
        return self._engine.request(f"bench-{self._requests}")

    def _keys(self, name: str, count: int) -> list[Any]:
        return [
            make_offload_key(f"{name:.>20}{number:012d}".encode(), 0) for number in range(count)
        ]

    def _store(self, keys: list[Any]) -> dict[Any, int]:
        """Offload as the worker does, without writing the slots; where each key was."""
        slots: dict[Any, int] = {}
        manager = self._engine.manager
        for at in range(0, len(keys), CHUNKS_PER_REQUEST):
            mine = keys[at : at + CHUNKS_PER_REQUEST]
            request = self._request()
            output = manager.prepare_store(mine, request)
            slots.update(zip(mine, self._engine.slots(output.store_spec), strict=True))
            manager.complete_store(mine, request)
            manager.on_request_finished(request)
        self._step_until(lambda: not manager._jobs)
        return slots

    def _ask_tier(self, keys: list[Any], request: Any) -> list[LookupResult]:
        """What the tier says of all keys, without the promotion that the manager would begin."""
        verdicts: list[LookupResult] = []

        def known() -> bool:
            verdicts[:] = [self._engine.tier.lookup(key, request) for key in keys]
            return LookupResult.RETRY not in verdicts

        self._step_until(known)
        return verdicts

    def _prefix(self, keys: list[Any], request: Any) -> int:
        found = 0

        def known() -> bool:
            nonlocal found
            found, waits = 0, False
            for key in keys:
                verdict = self._engine.tier.lookup(key, request)
                if verdict is LookupResult.MISS:
                    break
                waits |= verdict is LookupResult.RETRY
                found += 1
            return not waits

        self._step_until(known)
        return found

    def _all_hit(self, keys: list[Any], request: Any) -> bool:
        verdicts = [self._engine.manager.lookup(key, request) for key in keys]
        if LookupResult.MISS in verdicts:
            raise RuntimeError("a load failed")
        return set(verdicts) == {LookupResult.HIT}

    def _check(self, keys: list[Any], request: Any, before: dict[Any, int]) -> None:
        output = self._engine.manager.prepare_load(keys, request)
        for key, slot in zip(keys, self._engine.slots(output), strict=True):
            if not np.array_equal(self._engine.rows[slot], self._original[before[key]]):
                raise RuntimeError("a load brought other bytes than were stored")
        self._engine.manager.complete_load(keys, request)
        self._engine.rows[:] = self._original

    def _step_until(self, condition: Callable[[], bool]) -> None:
        end = time.perf_counter() + _SECONDS
        while not condition():
            if time.perf_counter() > end:
                raise RuntimeError("nothing happened for too long")
            self._nothing()
            self._engine.step()
            time.sleep(STEP_SECONDS)


def _other_threads_seconds() -> float:
    """CPU seconds of this process on all threads but this one."""
    return time.process_time() - time.thread_time()


if __name__ == "__main__":
    serve(EngineSide)
