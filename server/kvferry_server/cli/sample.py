"""How fast a store is: one object out and back by the way that chunks go.

Owns the sample and its judgement. Imports core's ports and the findings.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future

from kvferry_server.adapters.findings import Cause, Finding, Level
from kvferry_server.core.ports import ObjectStore
from kvferry_server.core.types import JobKind, Presence, TransferStatus

from .bounds import TimeoutsOptions
from .text import size

SAMPLE_BYTES = 8 << 20
SLOW_BYTES_PER_SECOND = 20 << 20
"""One transfer of several at once; below this, recomputing a prefix is often faster."""
PROBES = 5
FOLDER = ".kvferry-preflight"
_VERBS = {JobKind.STORE: "store", JobKind.LOAD: "load"}


class Measure:
    """Times one store.

    Args:
        store: its preflight has passed.
        timeouts: what the daemon would wait for.
    """

    def __init__(self, store: ObjectStore, timeouts: TimeoutsOptions) -> None:
        self._store = store
        self._timeouts = timeouts
        self._name = f"{FOLDER}/{secrets.token_hex(16)}"

    def run(self, delete: Callable[[str], None]) -> list[Finding]:
        """Blocking: latency of a lookup, then a sample out and back.

        Args:
            delete: removes an object by its name.
        """
        found = [self._latency()]
        payload = secrets.token_bytes(SAMPLE_BYTES)
        try:
            for kind in (JobKind.STORE, JobKind.LOAD):
                found.append(self._move(kind, memoryview(bytearray(payload))))
                if found[-1].level is Level.FAIL:
                    break
        finally:
            delete(self._name)
        return found

    def _latency(self) -> Finding:
        taken = []
        for number in range(PROBES):
            began = time.monotonic()
            answered: Future[object] = Future()
            self._store.probe([f"{self._name}-{number}"], answered.set_result)
            answer = answered.result()
            taken.append(time.monotonic() - began)
            if answer is None or answer == [Presence.UNKNOWN]:
                break
        seconds = sorted(taken)[len(taken) // 2]
        limit = self._timeouts.lookup_seconds
        detail = f"{seconds * 1000:.1f} ms for a lookup, median of {len(taken)}"
        if seconds <= limit:
            return Finding("lookup", Level.OK, detail, seconds=seconds)
        return Finding(
            "lookup",
            Level.FAIL,
            f"{detail}; lookups are given up after {limit:g} s",
            "use a store that is nearer, or raise timeouts.lookup_seconds",
            Cause.SLOW,
            seconds,
        )

    def _move(self, kind: JobKind, buffer: memoryview) -> Finding:
        name, limit = _VERBS[kind], self._timeouts.transfer_seconds
        ended: Future[TransferStatus] = Future()
        began = time.monotonic()
        self._store.transfer(kind, self._name, buffer, ended.set_result)
        status = ended.result()
        seconds = time.monotonic() - began
        if status is not TransferStatus.OK:
            return Finding(
                name,
                Level.FAIL,
                f"a sample of {size(SAMPLE_BYTES)} ended {status.name} after {seconds:.1f} s, "
                "though small objects work",
                "look at the network and at the server's limits for large objects",
                Cause.SLOW if status is TransferStatus.UNAVAILABLE else Cause.OTHER,
                seconds,
            )
        rate = SAMPLE_BYTES / seconds
        detail = (
            f"{size(SAMPLE_BYTES)} in {seconds * 1000:.0f} ms, {size(rate)}/s on one connection"
        )
        if seconds > limit:
            return Finding(
                name,
                Level.FAIL,
                f"{detail}; chunks of this size expire after {limit:g} s",
                "use a store that is nearer, or raise timeouts.transfer_seconds",
                Cause.SLOW,
                seconds,
            )
        if rate < SLOW_BYTES_PER_SECOND:
            advice = "see whether loading is faster than recomputing: docs/cost.md"
            return Finding(name, Level.WARN, detail, advice, Cause.SLOW, seconds)
        return Finding(name, Level.OK, detail, seconds=seconds)
