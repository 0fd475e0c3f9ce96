"""How many stores may run beside loads: as many as do not slow the loads down.

A store's bytes and a load's meet somewhere (a link, a server's disk or cores), and a load gates a
request's first token while nobody waits for a store. Where they meet can't be seen from here, so
the window is ruled by what it does to loads:

* A load that began and ended with at most one store running is *calm*; the median of the last of
  them is what a load takes. One that began with more is *busy*, and compared with that, if it
  began under the present window: others say nothing of it.
* Of each `_SAMPLE` busy loads the median is judged: more than `_SLOW` times calm halves the window,
  less than `_FINE` times lets it grow by half, but only after `patience` loads without a slow
  verdict. Patience doubles with a slow verdict and halves with a fine one, so that a store which
  is saturated by its first transfer is tried rarely, and one that bears everything is used in full.
* Unless calm is known, the window is one: that is how it becomes known.
* After `_REST_SECONDS` without a running load, nobody is slowed down and the window does not hold.

The window is never below one, so stores do not starve. Pure: no clock; times are the caller's.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque

_CALM_STORES = 1
_CALM_KEPT = 15
_SAMPLE = 8
_SLOW = 1.5
_FINE = 1.25
_SHRINK = 0.5
_GROW = 1.5
_LEAST_PATIENCE = 8
_MOST_PATIENCE = 512
_REST_SECONDS = 5.0
_SIZES_KEPT = 64


class StoreWindow:
    """Most stores that may run at a time; see the module's docstring."""

    def __init__(self) -> None:
        self._window = math.inf
        self._most = 1
        self._calm: OrderedDict[int, deque[float]] = OrderedDict()
        self._busy: list[float] = []
        self._patience = _LEAST_PATIENCE
        self._unslowed = 0
        self._running = 0
        self._last_load: float | None = None
        self._changed_at = -math.inf

    def limit(self, capacity: int, now: float) -> int:
        """Stores that may run now, of so many transfers: a quarter is always kept for loads."""
        self._most = capacity - max(1, capacity // 4) if capacity > 1 else capacity
        self._window = min(self._window, max(self._most, 1))
        resting = self._last_load is None or now - self._last_load >= _REST_SECONDS
        if resting and not self._running:
            return self._most
        return min(int(self._window), self._most)

    def load_began(self, now: float) -> None:
        """Somebody waits for a load from now on."""
        self._running += 1
        self._last_load = now

    def load_failed(self, now: float) -> None:
        """A load is over and says nothing of the store's pace."""
        self._load_over(now)

    def load_ended(self, size: int, seconds: float, stores: tuple[int, int], now: float) -> None:
        """Learn from a load that succeeded.

        Args:
            size: its bytes; loads of different sizes are not compared.
            seconds: it took.
            stores: that were running when it began and when it ended.
            now: in the same clock as `limit`'s.
        """
        self._load_over(now)
        if max(stores) <= _CALM_STORES:
            self._calm_times(size).append(seconds)
            if self._window < _CALM_STORES + 1:
                self._unslowed += 1
                self._grow_if_patient(now)
            return
        began_with = stores[0]
        if began_with <= _CALM_STORES:
            return
        calm = statistics.median(self._calm.get(size, (0.0,)))
        if not calm:
            self._window = 1.0
        elif began_with <= int(self._window) and now - seconds >= self._changed_at:
            self._busy.append(seconds / calm)
            if len(self._busy) == _SAMPLE:
                self._judge(now)

    def _load_over(self, now: float) -> None:
        self._running -= 1
        self._last_load = now

    def _judge(self, now: float) -> None:
        slowdown = statistics.median(self._busy)
        self._busy.clear()
        if slowdown > _SLOW:
            self._window = max(1.0, self._window * _SHRINK)
            self._patience = min(_MOST_PATIENCE, self._patience * 2)
            self._unslowed = 0
            self._changed_at = now
            return
        self._unslowed += _SAMPLE
        if slowdown < _FINE:
            self._patience = max(_LEAST_PATIENCE, self._patience // 2)
            self._grow_if_patient(now)

    def _grow_if_patient(self, now: float) -> None:
        if self._unslowed >= self._patience and self._window < self._most:
            self._window = min(self._most, max(self._window + 1, self._window * _GROW))
            self._unslowed = 0
            self._changed_at = now

    def _calm_times(self, size: int) -> deque[float]:
        times = self._calm.get(size)
        if times is None:
            times = self._calm[size] = deque(maxlen=_CALM_KEPT)
            if len(self._calm) > _SIZES_KEPT:
                self._calm.popitem(last=False)
        return times
