"""`Wakeup`: wakes one sleeping thread, and never makes the one who wakes it wait.

A condition won't do: to notify takes its lock, which the other threads hold now and then.
Standard library only.
"""

from __future__ import annotations

import contextlib
import queue


class Wakeup:
    """A flag for one waiting thread, set by any thread."""

    def __init__(self) -> None:
        """Start unset."""
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        """Let the waiter look again: now, or at its next `wait`. Never blocks."""
        if not self._is_set:
            self._is_set = True
            self._tokens.put(None)

    def wait(self, timeout_s: float | None) -> None:
        """Return once it was set since the last `wait`, or after `timeout_s` seconds."""
        with contextlib.suppress(queue.Empty):
            self._tokens.get(timeout=timeout_s)
        self._is_set = False
