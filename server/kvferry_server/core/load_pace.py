"""Whether loads are worth it: are they at least as fast as the engine computes?

The rate is that of all sessions together over the time in which a load was running, so that idle
time does not count; it is judged after every `_CHUNKS` loaded chunks. Too slow: lookups are not
answered for `_REST_SECONDS`, so engines compute; then the next loads are measured anew. Pure.
"""

from __future__ import annotations

_CHUNKS = 16
_REST_SECONDS = 10.0


class LoadPace:
    """Measures loads and says whether lookups may lead to more of them.

    Args:
        least: bytes per second; 0 if any rate is worth it.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._running = 0
        self._since = 0.0
        self._seconds = 0.0
        self._bytes = 0
        self._chunks = 0
        self._closed_until = 0.0

    def began(self, now: float) -> None:
        """A load runs from now on."""
        if self._running == 0:
            self._since = now
        self._running += 1

    def ended(self, loaded_bytes: int, now: float) -> None:
        """A load is over; 0 bytes if it brought nothing."""
        self._running -= 1
        self._seconds += now - self._since
        self._since = now
        if not self.allows(now) or not (loaded_bytes or self._chunks):
            self._forget()
            return
        if not loaded_bytes:
            return
        self._bytes += loaded_bytes
        self._chunks += 1
        if self._chunks == _CHUNKS:
            if self._bytes < self._least * self._seconds:
                self._closed_until = now + _REST_SECONDS
            self._forget()

    def allows(self, now: float) -> bool:
        """Whether a lookup is worth answering."""
        return now >= self._closed_until

    def _forget(self) -> None:
        """Begin a measurement: what failed before any load succeeded, or ended late, is none."""
        self._seconds, self._bytes, self._chunks = 0.0, 0, 0
