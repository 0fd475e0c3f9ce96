"""The real clock."""

from __future__ import annotations

import time


class MonotonicClock:
    """`core.ports.Clock` on CLOCK_MONOTONIC."""

    def monotonic(self) -> float:
        """Seconds since boot."""
        return time.monotonic()
