"""An engine's side that never stops asking: what vLLM does with its CPU tier, without a model.

Run as `python -m tests.observe.load SOCKET_DIR`. Each request takes one of a few hundred prompts,
looks its chunks up, loads what is there, "computes" the rest and stores it. Bytes are a function of
the key, and every load is compared. Writes one JSON line a second to standard output; SIGTERM ends
it. Imports the client and the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kvferry_client import Client
from kvferry_client.types import Outcome, Presence

CHUNKS = 4
"""Per request."""
CHUNK_BYTES = 256 << 10
SLOTS = 64
PROMPTS = 300
LOOKUP_SECONDS = 2.0
GUARD_SECONDS = 90.0
PAUSE_SECONDS = 0.05


class Engine:
    """One region, one request at a time."""

    def __init__(self, sockets: Path) -> None:
        descriptor = os.memfd_create("kvferry-load")
        os.ftruncate(descriptor, SLOTS * CHUNK_BYTES)
        self._region = mmap.mmap(descriptor, SLOTS * CHUNK_BYTES)
        os.close(descriptor)
        view = memoryview(self._region).cast("B", shape=[SLOTS, CHUNK_BYTES])
        self.client = Client(
            sockets, view, namespace="load", engine_id="load", lookup_timeout_s=LOOKUP_SECONDS
        )
        self._random = random.Random(1)
        self._next = 0

    def request(self) -> Counter[str]:
        """Serve one prompt; return what happened."""
        happened = Counter(requests=1)
        prompt = min(int(self._random.expovariate(4 / PROMPTS)), PROMPTS)
        keys = [
            hashlib.sha256(f"{prompt} {each}".encode()).digest() + bytes(4)
            for each in range(CHUNKS)
        ]
        slots = [(self._next + each) % SLOTS for each in range(CHUNKS)]
        self._next += CHUNKS
        present = self._look_up(keys, happened)
        if present:
            self._load(keys[:present], slots[:present], happened)
        if present < CHUNKS:
            for key, slot in zip(keys[present:], slots[present:], strict=True):
                self._slot(slot)[:] = content(key)
            self._ended(self.client.store(keys[present:], slots[present:]), happened)
        return happened

    def _look_up(self, keys: list[bytes], happened: Counter[str]) -> int:
        """How many chunks from the start are there."""
        self.client.lookup(keys, prefix_ordered=True)
        while not (replies := self.client.take_lookups()):
            if not self.client.wait_results(GUARD_SECONDS):
                raise TimeoutError("a lookup was never answered")
        verdicts = replies[0].verdicts
        happened.update(verdict.name.lower() for verdict in verdicts)
        misses = [at for at, each in enumerate(verdicts) if each is not Presence.PRESENT]
        return min(misses, default=CHUNKS)

    def _load(self, keys: list[bytes], slots: list[int], happened: Counter[str]) -> None:
        for slot in slots:
            self._slot(slot)[:] = bytes(CHUNK_BYTES)
        outcomes = self._ended(self.client.load(keys, slots), happened)
        for key, slot, outcome in zip(keys, slots, outcomes, strict=True):
            if outcome is Outcome.LOADED and bytes(self._slot(slot)) != content(key):
                happened["wrong_bytes"] += 1

    def _ended(self, job: int, happened: Counter[str]) -> tuple[Outcome, ...]:
        while not (results := self.client.take_results()):
            if not self.client.wait_results(GUARD_SECONDS):
                raise TimeoutError("a job never ended")
        (result,) = results
        if result.job_id != job:
            raise RuntimeError("a job was reported that nobody waits for")
        happened.update(outcome.name.lower() for outcome in result.outcomes)
        return result.outcomes

    def _slot(self, number: int) -> memoryview:
        return memoryview(self._region)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]


def content(key: bytes) -> bytes:
    """What is stored under a key."""
    return key[:32] * (CHUNK_BYTES // 32)


def say(**fields: Any) -> None:
    """One JSON line."""
    print(json.dumps(fields), flush=True)


def main() -> int:
    """Ask until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sockets", type=Path)
    engine = Engine(parser.parse_args().sockets)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    engine.client.wait_attached(GUARD_SECONDS)
    second, seen, longest = time.monotonic(), Counter[str](), 0.0
    while not stopping:
        began = time.monotonic()
        seen += engine.request()
        longest = max(longest, time.monotonic() - began)
        if time.monotonic() - second >= 1:
            say(at=time.time(), longest_seconds=round(longest, 3), **seen)
            second, seen, longest = time.monotonic(), Counter(), 0.0
        time.sleep(PAUSE_SECONDS)
    return 0 if engine.client.close() else 1


if __name__ == "__main__":
    sys.exit(main())
