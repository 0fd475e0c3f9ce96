"""Starts the client's threads, again and again where the process gets none.

Until all run, there is no session: lookups are misses and jobs end at once. May import `shared`.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from kvferry_client.shared import logger

if TYPE_CHECKING:
    from kvferry_client.shared import Shared


class Body(Protocol):
    """What a thread does."""

    def run(self) -> None:
        """Do it until the client is closed."""


class Starter:
    """The threads of one client in one process, in the order in which they are started."""

    def __init__(self, shared: Shared, *bodies: Body) -> None:
        """Start none yet."""
        self._shared = shared
        self._unstarted = [*bodies]

    def start(self) -> None:
        """Start what was not started, but not again right after it failed. Raises nothing."""
        shared = self._shared
        if shared.started:
            return
        with shared.lock:
            if not shared.may_start(time.monotonic()):
                return
        problem = self._start_threads()
        if problem:
            with shared.lock:
                is_news = shared.not_started(problem, time.monotonic())
            if is_news:
                logger.warning("%s, working without a daemon and trying on", problem)

    def _start_threads(self) -> str:
        """Return why not all could be started, or ""."""
        while self._unstarted:
            body = self._unstarted[0]
            name = f"kvferry-{type(body).__name__.lower()}"
            try:
                threading.Thread(target=body.run, name=name, daemon=True).start()
            except RuntimeError as error:
                return f"the thread {name} can't be started: {error}"
            del self._unstarted[0]
        return ""
