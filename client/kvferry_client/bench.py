"""`python -m kvferry_client.bench SETTINGS`: an engine's side that does what standard input says.

Settings and commands are JSON: `{"socket_dir": ..., "namespace": ..., "chunks": ..., "chunk_bytes":
...}` as the argument, then `{"do": "store", "name": ...}` a line; each is answered with `{"value":
...}` or `{"error": ...}` on a line. Ends at end-of-file. `kvferry bench` and bench/ start it, so
that the engine's side is a process of its own, as it is in use.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from kvferry_client.client import Client
from kvferry_client.demo import make_region
from kvferry_client.types import JobKind, Outcome, Presence

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS: Final = 120.0
"""Longest wait for anything."""

_GROUP: Final = bytes(4)
_EXPECTED: Final = {JobKind.STORE: Outcome.STORED, JobKind.LOAD: Outcome.LOADED}


class BenchFailedError(Exception):
    """Something did not go as it should; the text says what."""


class EngineSide:
    """One region and its client.

    Args:
        socket_dir: of the daemon.
        namespace: of the objects.
        chunks: slots of the region.
        chunk_bytes: length of each.
        chunks_per_job: as vLLM's jobs, which hold what one step of a request offloads.
        open_jobs: jobs submitted and not yet reported; 0 for all at once.
    """

    def __init__(
        self,
        socket_dir: str,
        namespace: str,
        chunks: int,
        chunk_bytes: int,
        chunks_per_job: int = 16,
        open_jobs: int = 0,
    ) -> None:
        self._flat = memoryview(make_region(chunks * chunk_bytes))
        self._content = random.Random(chunk_bytes).randbytes(len(self._flat))  # noqa: S311
        self._flat[:] = self._content
        self._chunks = chunks
        self._chunks_per_job = chunks_per_job
        self._open_jobs = open_jobs or chunks
        self._client = Client(
            socket_dir,
            self._flat.cast("B", shape=[chunks, chunk_bytes]),
            namespace=namespace,
            engine_id=f"bench-{os.getpid()}",
            lookup_timeout_s=SECONDS,
        )
        if not self._client.wait_attached(SECONDS):
            raise BenchFailedError(f"not attached: {self._client.last_error}")

    def store(self, name: str) -> dict[str, float]:
        """Store every slot under the keys of a new round; seconds and CPU seconds."""
        return self._move(JobKind.STORE, self._client.store, name)

    def load(self, name: str) -> dict[str, float]:
        """Fill every slot from a round's chunks and compare; seconds and CPU seconds."""
        self._flat[:] = bytes(len(self._flat))
        taken = self._move(JobKind.LOAD, self._client.load, name)
        if self._flat != self._content:
            raise BenchFailedError("a load brought other bytes than were stored")
        return taken

    def keys(self, name: str) -> list[str]:
        """Return the keys of a round, in hexadecimal: whoever removes its objects needs them."""
        return [each.hex() for each in _keys_of(name, self._chunks)]

    def lookup(self, name: str, count: int, present: bool) -> float:  # noqa: FBT001 - JSON
        """Seconds until it is known which of so many keys of a round are stored; checked."""
        wanted = Presence.PRESENT if present else Presence.ABSENT
        began = time.perf_counter()
        self._client.lookup(_keys_of(name, count))
        if not self._client.wait_results(SECONDS):
            raise BenchFailedError("a lookup was not answered")
        [reply] = self._client.take_lookups()
        seconds = time.perf_counter() - began
        if set(reply.verdicts) != {wanted}:
            raise BenchFailedError("a lookup was answered wrongly")
        return seconds

    def request(self, name: str) -> float:
        """Seconds until a request's prefix is loaded, or known not to come; a round is one."""
        began = time.perf_counter()
        self._client.lookup(_keys_of(name, self._chunks), prefix_ordered=True)
        self._client.wait_results(SECONDS)
        [reply] = self._client.take_lookups()
        if set(reply.verdicts) == {Presence.PRESENT}:
            self._move(JobKind.LOAD, self._client.load, name)
        return time.perf_counter() - began

    def latencies(self, name: str, seconds: float, pause_seconds: float) -> list[float]:
        """Load one chunk of a round after another for a while; seconds of each."""
        keys = _keys_of(name, self._chunks)
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            slot = len(taken) % self._chunks
            self._client.load([keys[slot]], [slot])
            self._take(JobKind.LOAD)
            taken.append(time.perf_counter() - began)
            time.sleep(pause_seconds)
        return taken

    def flood(self, name: str, seconds: float) -> int:
        """Store new chunks, all slots at a time, for a while; how many."""
        end, rounds = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            self.store(f"{name}-{rounds}")
            rounds += 1
        return rounds * self._chunks

    def close(self) -> None:
        """End the session."""
        self._client.close()

    def _move(
        self, kind: JobKind, submit: Callable[[list[bytes], range], int], name: str
    ) -> dict[str, float]:
        keys, step = _keys_of(name, self._chunks), self._chunks_per_job
        waiting = [range(at, min(at + step, len(keys))) for at in range(0, len(keys), step)]
        waiting.reverse()
        running = 0
        began, used = time.perf_counter(), time.process_time()
        while waiting or running:
            while waiting and running < self._open_jobs:
                slots = waiting.pop()
                submit(keys[slots.start : slots.stop], slots)
                running += 1
            running -= self._take(kind)
        return {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - used,
        }

    def _take(self, kind: JobKind) -> int:
        """Wait for jobs to end; how many did."""
        if not self._client.wait_results(SECONDS):
            raise BenchFailedError("no job ended")
        results = self._client.take_results()
        for result in results:
            failed = {each.name for each in result.outcomes if each is not _EXPECTED[kind]}
            if failed:
                raise BenchFailedError(f"a {kind.name.lower()} ended {', '.join(sorted(failed))}")
        return len(results)


def _keys_of(name: str, count: int) -> list[bytes]:
    hashes = (hashlib.sha256(f"{name} {number}".encode()).digest() for number in range(count))
    return [each + _GROUP for each in hashes]


def main() -> None:
    """Serve commands until end-of-file; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: Any = EngineSide(**json.loads(sys.argv[1]))
    try:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = {"value": getattr(side, command.pop("do"))(**command)}
            except BenchFailedError as error:
                answer = {"error": str(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        side.close()


if __name__ == "__main__":
    main()
