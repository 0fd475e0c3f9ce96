"""Which stores are worth an upload: second-touch admission, request and byte budgets.

Owns the counts of offers and the two budgets. A store that is not admitted is shed at once; it
never waits for a budget, since vLLM needs its slot back.
"""

from __future__ import annotations

from collections import OrderedDict

from .types import EngineSettings, ObjectRef, Refusal

WITHHOLDING = frozenset({Refusal.MIN_OFFERS, Refusal.PUT_RATE, Refusal.BYTE_RATE})
"""Refusals that the operator asked for: nothing is wrong."""


class AdmissionPolicy:
    """Decides about one store at a time."""

    def __init__(self, settings: EngineSettings) -> None:
        burst = settings.put_burst_seconds
        self._min_offers = settings.min_offers
        self._most = settings.max_offer_entries
        self._offers: OrderedDict[ObjectRef, int] = OrderedDict()
        self._puts = _Budget(settings.max_puts_per_second, burst)
        self._bytes = _Budget(settings.max_put_bytes_per_second, burst)

    def __len__(self) -> int:
        """Keys whose offers are counted."""
        return len(self._offers)

    def offer(self, ref: ObjectRef, size: int, now: float) -> Refusal | None:
        """Count an offer and spend the budgets on it, or say why it is not admitted.

        Args:
            ref: the object.
            size: its bytes.
            now: monotonic seconds.
        """
        if not self._offered_enough(ref):
            return Refusal.MIN_OFFERS
        if not self._puts.has(1, now):
            return Refusal.PUT_RATE
        if not self._bytes.has(size, now):
            return Refusal.BYTE_RATE
        self.spend(size)
        return None

    def spend(self, size: int) -> None:
        """Account for an upload of so many bytes; a retry may overdraw the budgets."""
        self._puts.spend(1)
        self._bytes.spend(size)

    def stored(self, ref: ObjectRef) -> None:
        """The object exists now: its offers need no count any more."""
        self._offers.pop(ref, None)

    def _offered_enough(self, ref: ObjectRef) -> bool:
        if self._min_offers <= 1:
            return True
        count = self._offers.get(ref, 0) + 1
        self._offers[ref] = min(count, self._min_offers)
        self._offers.move_to_end(ref)
        if len(self._offers) > self._most:
            self._offers.popitem(last=False)
        return count >= self._min_offers


class _Budget:
    """A token bucket: fills at `rate` per second up to `rate * burst_seconds`, at least one unit.

    A full budget admits anything, so that a chunk larger than the whole budget is not shut out.

    Args:
        rate: per second; 0 for no bound.
        burst_seconds: how long it takes to fill.
    """

    def __init__(self, rate: float, burst_seconds: float) -> None:
        self._rate = rate
        self._depth = max(1.0, rate * burst_seconds)
        self._level = self._depth
        self._filled_at: float | None = None

    def has(self, amount: float, now: float) -> bool:
        """Fill up to now; whether so much may be spent."""
        if not self._rate:
            return True
        if self._filled_at is not None:
            gained = (now - self._filled_at) * self._rate
            self._level = min(self._depth, self._level + gained)
        self._filled_at = now
        return self._level >= min(amount, self._depth)

    def spend(self, amount: float) -> None:
        """Take so much, below zero if need be."""
        if self._rate:
            self._level -= amount
