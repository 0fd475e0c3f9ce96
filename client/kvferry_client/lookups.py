"""Open lookups, as a pure table: no I/O, no clock, no thread, no lock.

Every lookup ends at its deadline at the latest; keys without a verdict are then UNKNOWN.
An answer that comes later is dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvferry_client.limits import MESSAGE_OVERHEAD_BYTES, context_bytes, keys_bytes
from kvferry_client.types import LookupReply, Presence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvferry_client.limits import SessionLimits
    from kvferry_client.types import RequestContext


@dataclass(slots=True)
class _Lookup:
    """A lookup as the caller knows it."""

    ticket: int
    keys: tuple[bytes, ...]
    prefix_ordered: bool
    context: RequestContext
    deadline: float
    verdicts: list[Presence]
    unanswered: int
    unsent: int = 0
    """Index of the first key that was not yet handed out."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class LookupSlice:
    """A run of keys of one lookup; one group on the wire."""

    lookup: _Lookup
    first: int
    keys: tuple[bytes, ...]

    @property
    def context(self) -> RequestContext:
        """The request that asks."""
        return self.lookup.context

    @property
    def prefix_ordered(self) -> bool:
        """Whether only the run of present keys from the first one on is useful."""
        return self.lookup.prefix_ordered

    @property
    def deadline(self) -> float:
        """When the caller stops waiting, on the caller's clock."""
        return self.lookup.deadline


class LookupTable:
    """All open lookups. The caller brings the lock; lookups come in order of deadline."""

    def __init__(self, max_queued_keys: int) -> None:
        """Start empty; `max_queued_keys` bounds the keys that wait to be sent."""
        self._max_queued_keys = max_queued_keys
        self._queued_keys = 0
        self._queue: deque[_Lookup] = deque()
        self._by_deadline: deque[_Lookup] = deque()
        self.replies: deque[LookupReply] = deque()
        """Ended lookups, for the caller to take off the left end; that needs no lock."""
        self._verdicts = dict.fromkeys(Presence, 0)
        self.expired = 0
        """Lookups that reached their deadline, since the start."""
        self.late = 0
        """Answers that came after it, since the start."""

    @property
    def has_queued(self) -> bool:
        """True if `next_request` would return something."""
        return bool(self._queue)

    @property
    def has_replies(self) -> bool:
        """True if a lookup has ended that was not yet taken."""
        return bool(self.replies)

    def totals(self) -> dict[str, int]:
        """Counters since the start, by name; needs no lock."""
        names = {f"lookup_keys_{presence.name.lower()}": presence for presence in Presence}
        totals = {name: self._verdicts[presence] for name, presence in names.items()}
        return {**totals, "lookups_expired": self.expired, "lookup_answers_late": self.late}

    @property
    def next_deadline(self) -> float | None:
        """When the oldest open lookup expires, on the caller's clock; None if none is open."""
        while self._by_deadline and self._by_deadline[0].done:
            self._by_deadline.popleft()
        return self._by_deadline[0].deadline if self._by_deadline else None

    def submit(
        self,
        ticket: int,
        keys: tuple[bytes, ...],
        context: RequestContext,
        *,
        prefix_ordered: bool,
        deadline: float,
    ) -> bool:
        """Queue a lookup; False (and nothing changed) if the queue is full."""
        if self._queued_keys + len(keys) > self._max_queued_keys:
            return False
        lookup = _Lookup(
            ticket,
            keys,
            prefix_ordered,
            context,
            deadline,
            [Presence.UNKNOWN] * len(keys),
            unanswered=len(keys),
        )
        self._queued_keys += len(keys)
        self._queue.append(lookup)
        self._by_deadline.append(lookup)
        return True

    def answer_unknown(self, ticket: int, count: int) -> None:
        """Reply at once that nothing is known about `count` keys."""
        self._add_reply(ticket, (Presence.UNKNOWN,) * count)

    def next_request(self, limits: SessionLimits, now: float) -> list[LookupSlice]:
        """Hand out the keys of one request that respects `limits`; expired ones are left out."""
        slices: list[LookupSlice] = []
        room = limits.max_keys_per_request
        size_room = limits.max_message_bytes - MESSAGE_OVERHEAD_BYTES
        per_key = limits.max_key_bytes + 8
        while self._queue and room > 0:
            lookup = self._queue[0]
            if lookup.done or lookup.deadline <= now:
                self._unqueue(lookup)
                continue
            size_room -= context_bytes(lookup.context) + 16
            count = min(room, max(size_room // per_key, 0), len(lookup.keys) - lookup.unsent)
            if count < 1:
                if slices:
                    break
                count = 1
            keys = lookup.keys[lookup.unsent : lookup.unsent + count]
            slices.append(LookupSlice(lookup, lookup.unsent, keys))
            lookup.unsent += count
            self._queued_keys -= count
            room -= count
            size_room -= keys_bytes(keys)
            if lookup.unsent == len(lookup.keys):
                self._queue.popleft()
        return slices

    def answer(self, piece: LookupSlice, verdicts: Sequence[int]) -> None:
        """Take in the daemon's verdicts; missing or odd ones count as UNKNOWN."""
        lookup = piece.lookup
        if lookup.done:
            self.late += 1
            return
        for index, number in enumerate(verdicts[: len(piece.keys)], piece.first):
            if number in (Presence.PRESENT, Presence.ABSENT):
                lookup.verdicts[index] = Presence(number)
        lookup.unanswered -= len(piece.keys)
        if lookup.unanswered <= 0:
            self._reply(lookup)

    def expire(self, now: float, max_keys: int | None = None) -> None:
        """End lookups whose deadline is over, stopping once they have `max_keys` keys."""
        room = max_keys
        while (deadline := self.next_deadline) is not None and deadline <= now:
            if room is not None:
                if room <= 0:
                    break
                room -= len(self._by_deadline[0].keys)
            self.expired += 1
            self._reply(self._by_deadline.popleft())

    def end(self) -> None:
        """Reply to every open lookup with what is known: there is no daemon to ask."""
        for lookup in self._by_deadline:
            if not lookup.done:
                self._reply(lookup)
        self._by_deadline.clear()
        self._queue.clear()
        self._queued_keys = 0

    def _unqueue(self, lookup: _Lookup) -> None:
        self._queue.popleft()
        self._queued_keys -= len(lookup.keys) - lookup.unsent

    def _reply(self, lookup: _Lookup) -> None:
        lookup.done = True
        self._add_reply(lookup.ticket, tuple(lookup.verdicts))

    def _add_reply(self, ticket: int, verdicts: tuple[Presence, ...]) -> None:
        for presence in Presence:
            self._verdicts[presence] += verdicts.count(presence)
        self.replies.append(LookupReply(ticket, verdicts))
