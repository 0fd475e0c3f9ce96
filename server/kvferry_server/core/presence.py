"""What is known about the existence of objects, with bounded memory and age."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, unique
from typing import NamedTuple

from .types import EngineSettings, ObjectRef, Presence


@unique
class _Known(Enum):
    PRESENT = "present"
    ABSENT = "absent"
    CONDEMNED = "condemned"
    """There is an object, but its content is unusable: absent for readers, and the next
    store overwrites it."""


class _Entry(NamedTuple):
    known: _Known
    expires: float


class PresenceTable:
    """Existence index: least recently used entries go first when it is full."""

    def __init__(self, settings: EngineSettings) -> None:
        self._life = {
            _Known.PRESENT: settings.present_seconds,
            _Known.ABSENT: settings.absent_seconds,
            _Known.CONDEMNED: settings.condemned_seconds,
        }
        self._most = settings.max_presence_entries
        self._entries: OrderedDict[ObjectRef, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, ref: ObjectRef, now: float) -> Presence | None:
        """PRESENT, ABSENT, or None if it has to be probed."""
        entry = self._fresh(ref, now)
        if entry is None:
            return None
        self._entries.move_to_end(ref)
        return Presence.PRESENT if entry.known is _Known.PRESENT else Presence.ABSENT

    def probed(self, ref: ObjectRef, verdict: Presence, now: float) -> Presence:
        """Take in a probe's answer (not UNKNOWN) and return the verdict for readers.

        A condemned object stays absent for readers although a probe finds it.
        """
        entry = self._fresh(ref, now)
        if verdict is Presence.PRESENT and entry is not None and entry.known is _Known.CONDEMNED:
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

    def _fresh(self, ref: ObjectRef, now: float) -> _Entry | None:
        entry = self._entries.get(ref)
        if entry is not None and now >= entry.expires:
            del self._entries[ref]
            return None
        return entry

    def _put(self, ref: ObjectRef, known: _Known, now: float) -> None:
        self._entries[ref] = _Entry(known, now + self._life[known])
        self._entries.move_to_end(ref)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
