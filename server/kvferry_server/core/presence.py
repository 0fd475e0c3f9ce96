"""What is known about the existence of objects, with bounded memory and age.

A million keys are an ordinary index, so an entry is one `bytes` and its place in a plain dict: at
most 150 bytes for a key of 36. The table is cut into parts, each a dict in the order of use, so
that no step has to grow or search through a large one. Its values are integers, so that Python's
garbage collector never walks through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, unique
from itertools import islice

from .types import EngineSettings, ObjectRef, Presence

_MAX_PART = 5_400
"""Entries: a dict that has had as many changes is sized for little more than these."""
_EVICTED_SHARE = 64
"""A full part gives up one in so many at once; to find the oldest one takes a search."""
_STATE_BITS = 2
_STATE_MASK = 3
_MICROS = 1_000_000
_TICKS_PER_LIFE = 1_024
"""An entry expires up to one such part of its life early, so that many share one expiry."""


@unique
class _Known(IntEnum):
    PRESENT = 0
    ABSENT = 1
    CONDEMNED = 2
    """There is an object, but its content is unusable: absent for readers, and the next
    store overwrites it."""


class PresenceTable:
    """Existence index: least recently used entries go first when it is full."""

    def __init__(self, settings: EngineSettings) -> None:
        self._life = {
            _Known.PRESENT: settings.present_seconds,
            _Known.ABSENT: settings.absent_seconds,
            _Known.CONDEMNED: settings.condemned_seconds,
        }
        most = settings.max_presence_entries
        self._parts: list[dict[bytes, int]] = [{} for _ in range(-(-most // _MAX_PART))]
        self._most = most // len(self._parts)
        self._newest = {known: (0.0, int(known)) for known in _Known}
        """The newest expiry, and the entry that was made for it."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, ref: ObjectRef, now: float) -> Presence | None:
        """PRESENT, ABSENT, or None if it has to be probed."""
        name = _name(ref)
        part = self._parts[hash(name) % len(self._parts)]
        entry = part.pop(name, None)
        if entry is None or now >= _expires(entry):
            return None
        part[name] = entry
        return Presence.ABSENT if entry & _STATE_MASK else Presence.PRESENT

    def known(
        self, space: str, keys: Sequence[bytes], now: float, *, to_absent: bool
    ) -> tuple[Presence, ...] | None:
        """What is known of many objects, to the first absent one if so wanted.

        None if one of them has to be probed.
        """
        prefix, parts = _prefix(space), self._parts
        found = []
        for key in keys:
            name = prefix + key
            part = parts[hash(name) % len(parts)]
            entry = part.pop(name, None)
            if entry is None or now >= _expires(entry):
                return None
            part[name] = entry
            if not entry & _STATE_MASK:
                found.append(Presence.PRESENT)
                continue
            found.append(Presence.ABSENT)
            if to_absent:
                break
        return tuple(found)

    def probed(self, ref: ObjectRef, verdict: Presence, now: float) -> Presence:
        """Take in a probe's answer (not UNKNOWN) and return the verdict for readers.

        A condemned object stays absent for readers although a probe finds it.
        """
        if verdict is Presence.PRESENT and self._is_condemned(ref, now):
            return Presence.ABSENT
        self._put(ref, _Known.PRESENT if verdict is Presence.PRESENT else _Known.ABSENT, now)
        return verdict

    def stored(self, ref: ObjectRef, now: float) -> None:
        """A store of the object finished."""
        self._put(ref, _Known.PRESENT, now)

    def missing(self, ref: ObjectRef, now: float) -> None:
        """A load found no object."""
        self._put(ref, _Known.ABSENT, now)

    def condemn(self, ref: ObjectRef, now: float) -> None:
        """A load found an object with unusable content."""
        self._put(ref, _Known.CONDEMNED, now)

    def _is_condemned(self, ref: ObjectRef, now: float) -> bool:
        name = _name(ref)
        entry = self._parts[hash(name) % len(self._parts)].get(name)
        if entry is None or now >= _expires(entry):
            return False
        return entry & _STATE_MASK == _Known.CONDEMNED

    def _put(self, ref: ObjectRef, known: _Known, now: float) -> None:
        name = _name(ref)
        part = self._parts[hash(name) % len(self._parts)]
        part.pop(name, None)
        part[name] = self._entry(known, now)
        if len(part) > self._most:
            for oldest in list(islice(part, 1 + self._most // _EVICTED_SHARE)):
                del part[oldest]

    def _entry(self, known: _Known, now: float) -> int:
        """State and expiry of what was learnt now; one object for all of about the same time."""
        newest, entry = self._newest[known]
        life = self._life[known]
        expires = now + life
        if not newest <= expires < newest + life / _TICKS_PER_LIFE:
            entry = int(expires * _MICROS) << _STATE_BITS | known
            self._newest[known] = (expires, entry)
        return entry


def _expires(entry: int) -> float:
    return (entry >> _STATE_BITS) / _MICROS


def _name(ref: ObjectRef) -> bytes:
    """The object in one small value."""
    return _prefix(ref.space) + ref.key


def _prefix(space: str) -> bytes:
    """Tells spaces apart, unless their 64-bit hashes are equal."""
    return hash(space).to_bytes(8, "big", signed=True)
