"""How many chunks the object store is given at once.

So many as it moves in parallel; and small ones beyond that, as far as it likes, so that it goes on
without a turn of the loop for each. Together they stay below what so many transfers of ordinary
chunks would be, so that a load behind them does not wait for longer. Pure.
"""

from __future__ import annotations

_SMALL_BYTES = 512 << 10
"""For each parallel transfer."""


class Places:
    """Counts the bytes that are in transfer.

    Args:
        most: transfers that the settings allow.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ahead = 0
        self._bytes = 0
        self.parallel = most

    def offered(self, parallel: int, ahead: int) -> None:
        """The object store moves so many chunks at once, and likes to have more small ones."""
        self.parallel = min(self._most, parallel)
        self._ahead = min(self._most - self.parallel, ahead)

    @property
    def most(self) -> int:
        """Chunks that are ever in transfer at once."""
        return self.parallel + self._ahead

    def now(self) -> int:
        """Chunks that may be in transfer together with those that are."""
        small = self._bytes < self.parallel * _SMALL_BYTES
        return self.most if small else self.parallel

    def taken(self, size: int) -> None:
        """A chunk of so many bytes is in transfer."""
        self._bytes += size

    def left(self, size: int) -> None:
        """It is no more."""
        self._bytes -= size
