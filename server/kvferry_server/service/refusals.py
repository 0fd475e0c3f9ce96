"""What the log says of refused engines, which try again twice a second. Imports the core's errors.

The first refusal of a peer for a reason is a line; from then on a line a minute says how many more
there were. The number of peers that are remembered is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_server.core.errors import KvferryError

from .status import cut

__all__ = ["Refusals"]

SUMMARY_SECONDS = 60.0
FORGET_SECONDS = 3600.0
MAX_REMEMBERED = 256


@dataclass(slots=True)
class _Streak:
    """Refusals of one peer for one reason since their last line."""

    logged_at: float
    unlogged: int = 0


class Refusals:
    """Decides which refusals are worth a line. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._streaks: dict[tuple[int, str], _Streak] = {}

    def line(self, uid: int, error: KvferryError, now: float) -> str:
        """The text to log for a refusal; empty if it is only counted."""
        key = (uid, error.reason)
        streak = self._streaks.get(key)
        if streak is None or now - streak.logged_at >= FORGET_SECONDS:
            self._remember(key, now)
            return f"refused uid {uid}: {cut(error.message)}"
        streak.unlogged += 1
        if now - streak.logged_at < SUMMARY_SECONDS:
            return ""
        seconds, count = now - streak.logged_at, streak.unlogged
        self._remember(key, now)
        return f"refused uid {uid} {count} more times in {seconds:.0f} s: {cut(error.message)}"

    def _remember(self, key: tuple[int, str], now: float) -> None:
        self._streaks.pop(key, None)
        if len(self._streaks) >= MAX_REMEMBERED:
            del self._streaks[next(iter(self._streaks))]
        self._streaks[key] = _Streak(now)
