"""Which job ids a session has ever used, as intervals: constant memory for dense ids."""

from __future__ import annotations

from bisect import bisect_right


class IdIntervals:
    """A growing set of positive integers kept as disjoint, non-adjacent intervals."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number <= self._ends[at]

    def __len__(self) -> int:
        """Number of intervals, not of integers."""
        return len(self._starts)

    def add(self, number: int) -> None:
        """Put a number in; one that is in already changes nothing."""
        at = bisect_right(self._starts, number) - 1
        if at >= 0 and number <= self._ends[at]:
            return
        joins_left = at >= 0 and self._ends[at] == number - 1
        joins_right = at + 1 < len(self._starts) and self._starts[at + 1] == number + 1
        if joins_left and joins_right:
            self._ends[at] = self._ends.pop(at + 1)
            del self._starts[at + 1]
        elif joins_left:
            self._ends[at] = number
        elif joins_right:
            self._starts[at + 1] = number
        else:
            self._starts.insert(at + 1, number)
            self._ends.insert(at + 1, number)
