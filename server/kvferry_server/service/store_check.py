"""The store's preflight: at start and again until it passes, and whenever an operator asks."""

from __future__ import annotations

import asyncio
import logging

from kvferry_server.core.events import Capacity, StoreReadiness
from kvferry_server.core.ports import ObjectStore, Preflight

from .runner import Runner

__all__ = ["StoreCheck"]

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0
SLOW_SECONDS = 60.0
"""Longer than any wait of a preflight."""
_SLOW = (
    "the preflight does not end: see whether DNS and AWS's credential sources answer, and whether "
    "the system allows enough threads (the pids limit of the container)"
)


class StoreCheck:
    """Runs preflights, one at a time, in a thread.

    Until one has passed, the engine answers lookups UNKNOWN and sheds stores; from then on
    its breakers judge the store.
    """

    def __init__(self, store: ObjectStore, runner: Runner) -> None:
        self._store = store
        self._runner = runner
        self._one_at_a_time = asyncio.Lock()
        self.ready = False
        """True once a preflight has passed."""
        self.settings = ""
        """What the last passed preflight chose."""
        self.problem = ""
        """What the last preflight found wrong; empty if it passed."""

    async def run(self) -> Preflight:
        """One preflight now; logs its outcome if that is news."""
        async with self._one_at_a_time:
            running = asyncio.ensure_future(asyncio.to_thread(self._store.preflight))
            if not (await asyncio.wait({running}, timeout=SLOW_SECONDS))[0]:
                self.problem = "" if self.ready else _SLOW
                _log.error("store %s: %s", self._store.url, _SLOW)
            found = await running
        if found.ready:
            if not self.ready or self.problem:
                _log.info("store %s: ready: %s", self._store.url, found.settings)
            self.settings = found.settings
            self._runner.send(Capacity(self._store.max_active_chunks))
            self._runner.send(StoreReadiness(ready=True))
            self.ready = True
        elif found.problem != self.problem:
            _log.error("store %s: not usable: %s", self._store.url, found.problem)
        self.problem = "" if found.ready else found.problem
        return found

    async def until_ready(self) -> None:
        """Preflights with growing pauses until one passes, whatever becomes of the others."""
        pause = FIRST_RETRY_SECONDS
        while not self.ready:
            try:
                await self.run()
            except Exception:  # noqa: BLE001 -- the task's boundary: go on looking
                _log.exception("store %s: the preflight failed unexpectedly", self._store.url)
            if not self.ready:
                await asyncio.sleep(pause)
            pause = min(LAST_RETRY_SECONDS, 2 * pause)
