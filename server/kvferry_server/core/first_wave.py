"""How many keys of a prefix are probed at first.

It follows what the first probes of prefixes found of late: each absence behind another one halves
the number, each presence makes it four times as large. So on a cold store a prefix costs one
request, not a wave of them, and on a warm one no more rounds than it has to. Pure.
"""

from __future__ import annotations

from .types import Presence

_SHRINK = 2
_GROW = 4


class FirstWave:
    """The size of a first wave, from one up to `most` keys; it begins there."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._before = Presence.UNKNOWN
        self.keys = most

    def learn(self, first: Presence) -> None:
        """Take in the verdict of the first key of a prefix that had to be probed."""
        if first is Presence.UNKNOWN:
            return
        if first is Presence.PRESENT:
            self.keys = min(self.keys * _GROW, self._most)
        elif self._before is Presence.ABSENT:
            self.keys = max(self.keys // _SHRINK, 1)
        self._before = first
