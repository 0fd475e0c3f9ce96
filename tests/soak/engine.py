"""One engine of the soak: mixed traffic over a bounded set of keys until it is told to end.

Usage: `python -m tests.soak.engine SOCKETS SPACE SEED`. Each line on standard output is a JSON
report; the line `end` on standard input ends it, after every job is reported and every slot looked
at. Keys of space 0 are shared by all engines.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
import time
from pathlib import Path

from kvferry_client import JobKind, Outcome
from tests.faults.content import content_of, key_of
from tests.faults.rig import Engine

KEYS = 400
OPEN_JOBS = 6
REPORT_SECONDS = 5.0
PAUSE_SECONDS = 0.02
MAX_CHUNKS = 6
LOOKUP_SHARE, LOAD_SHARE, DRAIN_SHARE = 0.3, 0.4, 0.002


class Traffic:
    """What vLLM would do, only at random."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.lookups: dict[int, int] = {}
        self.answered = 0
        self.wrong_lookups = 0
        self.stored: dict[str, float] = {}
        """When a store of a key was last reported as STORED, by the key's name, by time.time()."""
        self.corrupt: list[tuple[str, float]] = []
        """Each load that was reported as CORRUPT: the key's name, and when."""
        engine.ledger.note = self._note

    def step(self) -> None:
        """Take in what was reported, and submit one thing more."""
        engine = self.engine
        engine.take()
        for reply in engine.client.take_lookups():
            wanted = self.lookups.pop(reply.ticket, None)
            self.answered += 1
            self.wrong_lookups += wanted != len(reply.verdicts)
        if engine.ledger.open_jobs >= OPEN_JOBS:
            return
        keys = self._keys()
        choice = self.random.random()
        if choice < DRAIN_SHARE:
            engine.client.drain(timeout_s=5.0)
        elif choice < LOOKUP_SHARE:
            self.lookups[engine.client.lookup(keys)] = len(keys)
        elif choice < LOOKUP_SHARE + LOAD_SHARE:
            engine.load(keys)
        else:
            self._store(keys)

    def _note(self, _: JobKind, key: bytes, outcome: Outcome) -> None:
        if outcome is Outcome.STORED:
            self.stored[key.hex()] = time.time()
        elif outcome is Outcome.CORRUPT:
            self.corrupt.append((key.hex(), time.time()))

    def _keys(self) -> list[bytes]:
        count = self.random.randint(1, MAX_CHUNKS)
        numbers = self.random.sample(range(KEYS), count)
        space = self.random.choice([0, self.engine.space])
        return [key_of(number, space) for number in numbers]

    def _store(self, keys: list[bytes]) -> None:
        engine = self.engine
        slots = engine.ledger.take_slots(len(keys))
        for key, slot in zip(keys, slots, strict=True):
            engine.region.write(slot, content_of(key))
        job = engine.client.store(keys, slots)
        engine.ledger.submitted(job, JobKind.STORE, keys, slots)

    def report(self, *, ended: bool) -> None:
        """One line."""
        report = vars(self.engine.ledger.tally) | {
            "lookups": self.answered,
            "wrong_lookups": self.wrong_lookups,
            "stored": self.stored,
            "corrupt": self.corrupt,
            "ended": ended,
        }
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def main(sockets: str, space: str, seed: str) -> None:
    """Run until the end of the input."""
    logging.getLogger("kvferry_client").setLevel(logging.CRITICAL)
    engine = Engine(Path(sockets), int(space))
    engine.attach()
    traffic = Traffic(engine, int(seed))
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    next_report = time.monotonic()
    while not told.is_set():
        traffic.step()
        if time.monotonic() >= next_report:
            next_report += REPORT_SECONDS
            traffic.report(ended=False)
        time.sleep(PAUSE_SECONDS)
    engine.settle()
    engine.ledger.check_all()
    traffic.report(ended=True)
    engine.client.close(timeout_s=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
