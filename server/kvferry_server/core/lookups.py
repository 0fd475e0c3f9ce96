"""Lookups: answers from the presence table, probes for the rest.

One probe per object whoever asks (single flight); a prefix-ordered group is probed in
growing numbers and stops at its first absence; everything ends at its deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from .breaker import Breaker
from .effects import Abort, Effect, LookupReply, StartProbe
from .errors import IllegalTransition
from .events import ProbeFinished, StartLookup
from .first_wave import FirstWave
from .load_pace import LoadPace
from .presence import PresenceTable
from .types import EngineSettings, LookupGroup, ObjectRef, Presence, VerdictSource

_Verdict = tuple[Presence, VerdictSource]
_CUTOFF = (Presence.UNKNOWN, VerdictSource.CUTOFF)
_INDEX_VERDICTS = (
    (Presence.PRESENT, VerdictSource.INDEX),
    (Presence.ABSENT, VerdictSource.INDEX),
    _CUTOFF,
)
_AWAKE_PACE_SECONDS = 0.5
"""How often the loop has to be seen so that no time of a running probe goes uncounted."""
_GROWTH = 3
"""A prefix whose keys are all present is asked for in 32, 128, 512 keys: each round four times as
many, without a pause between the rounds."""
_AWAITED_PER_PROBING = 2
"""Keys of one unordered group that may wait, per key that may be probed at once: enough to keep the
probes busy, and no more, so that a huge group holds up neither other lookups nor the event loop."""
_MAX_UNSENT_PER_PROBING = 1024
"""Keys that may wait for a probe, per key that may be probed at once."""


@dataclass(slots=True, eq=False)
class _Group:
    lookup: _Lookup
    spec: LookupGroup
    refs: tuple[ObjectRef, ...]
    verdicts: list[_Verdict | None]
    window: int
    """Probes that it may wait for at once; each key found to be present makes room for more."""
    limit: int
    """No key from here on has to be asked for."""
    cursor: int = 0
    """All verdicts before it are known."""
    frontier: int = 0
    """Probes have been asked for up to here."""
    awaited: dict[int, _Probing] = field(default_factory=dict)
    """What the group waits for, by position."""
    probed: bool = False
    """One of the verdicts before the cursor comes from a probe."""

    @property
    def finished(self) -> bool:
        """Whether all verdicts are known."""
        return self.cursor == len(self.refs)


@dataclass(slots=True, eq=False)
class _Lookup:
    lookup_id: int
    session_id: str
    deadline: float
    groups: list[_Group] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Probing:
    """An object whose probe is wanted or running."""

    ref: ObjectRef
    waiters: dict[tuple[_Group, int], None] = field(default_factory=dict)
    """Groups and positions, of open lookups only."""
    outdated: bool = False


@dataclass(slots=True)
class _Probe:
    refs: tuple[ObjectRef, ...]
    trial: bool
    awake_at: float


class Lookups:
    """Open lookups and the probes they wait for.

    Args:
        breaker: the read breaker.
        load_pace: whether what is found is worth a load.
        emit: takes effects in order.
    """

    def __init__(
        self,
        settings: EngineSettings,
        presence: PresenceTable,
        breaker: Breaker,
        load_pace: LoadPace,
        counters: Counter[str],
        emit: Callable[[Effect], None],
    ) -> None:
        self._settings = settings
        self._presence = presence
        self._breaker = breaker
        self._load_pace = load_pace
        self._counters = counters
        self._emit = emit
        self._first_wave = FirstWave(settings.probe_wave)
        self._most_awaited = settings.max_probing_keys * _AWAITED_PER_PROBING
        self._open: dict[int, _Lookup] = {}
        self._unsent: dict[ObjectRef, _Probing] = {}
        self._sent: dict[ObjectRef, _Probing] = {}
        self._probes: dict[int, _Probe] = {}
        self._last_probe_id = 0
        self.available = False
        """False while the store is not ready or loads are paused."""

    def __len__(self) -> int:
        return len(self._open)

    def start(self, event: StartLookup, space: str, now: float) -> None:
        """Answer at once or begin to probe."""
        worth_it = self._load_pace.allows(now)
        self._counters["lookups_too_slow"] += not worth_it
        usable = worth_it and self.available and self._breaker.allows(now)
        if usable and self._answered_from_index(event, space, now):
            return
        lookup = _Lookup(event.lookup_id, event.session_id, event.deadline)
        lookup.groups = [
            _Group(
                lookup,
                spec,
                tuple(ObjectRef(space, key) for key in spec.keys),
                [None] * len(spec.keys),
                self._first_wave.keys if spec.prefix_ordered else self._most_awaited,
                len(spec.keys),
            )
            for spec in event.groups
        ]
        self._open[event.lookup_id] = lookup
        if not usable:
            self._give_up(lookup)
            return
        for group in lookup.groups:
            self._advance(group, now)
        self._reply_if_done(lookup)

    def _answered_from_index(self, event: StartLookup, space: str, now: float) -> bool:
        """Reply if no key has to be asked for; the ordinary case of a warm index."""
        verdicts = []
        for group in event.groups:
            known = self._presence.known(space, group.keys, now, to_absent=group.prefix_ordered)
            if known is None:
                return False
            verdicts.append(known + (Presence.UNKNOWN,) * (len(group.keys) - len(known)))
        for presence, source in _INDEX_VERDICTS:
            count = sum(group.count(presence) for group in verdicts)
            self._counters[f"verdicts_{presence.name.lower()}_{source}"] += count
        self._emit(LookupReply(event.lookup_id, tuple(verdicts)))
        return True

    def cancel(self, lookup_id: int) -> None:
        """Forget a lookup that nobody waits for."""
        lookup = self._open.pop(lookup_id, None)
        if lookup is not None:
            self._close(lookup)

    def answer_session(self, session_id: str) -> None:
        """End the lookups of a session with what is known."""
        for lookup in [v for v in self._open.values() if v.session_id == session_id]:
            self._give_up(lookup)

    def answer_all(self) -> None:
        """End all lookups with what is known."""
        for lookup in list(self._open.values()):
            self._give_up(lookup)

    def tick(self, now: float, awake: float) -> None:
        """End the lookups whose deadline has come, and the daemon if a probe never ends.

        Args:
            now: monotonic seconds.
            awake: ticked seconds, as probes' ages are counted.
        """
        for lookup in [v for v in self._open.values() if v.deadline <= now]:
            self._counters["lookups_expired"] += 1
            for group in lookup.groups:
                self._look_up_rest(group, now)
            self._give_up(lookup)
        oldest = next(iter(self._probes.values()), None)
        age = 0.0 if oldest is None else awake - oldest.awake_at
        if age >= self._settings.hard_deadline_seconds:
            self._emit(
                Abort(
                    f"a probe has been running for {age:.0f} s, longer than hard_deadline_seconds"
                )
            )

    def next_wakeup(self, now: float) -> float | None:
        """The earliest deadline; soon while a probe runs, so that its age is counted."""
        times = [lookup.deadline for lookup in self._open.values()]
        if self._probes:
            times.append(now + _AWAKE_PACE_SECONDS)
        return min(times, default=None)

    def pump(self, now: float, awake: float) -> None:
        """Send wanted probes as far as bounds and breaker allow; times as for `tick`."""
        settings = self._settings
        while self._unsent:
            if not self._breaker.allows(now):
                self._fail_unsent(now)
                return
            room = settings.max_probing_keys - len(self._sent)
            refs = list(islice(self._unsent, min(room, settings.probe_batch)))
            if not refs:
                return
            self._last_probe_id += 1
            for ref in refs:
                self._sent[ref] = self._unsent.pop(ref)
            self._probes[self._last_probe_id] = _Probe(tuple(refs), self._breaker.begin(now), awake)
            self._counters["probed_keys"] += len(refs)
            self._emit(StartProbe(self._last_probe_id, tuple(refs)))

    def finished(self, event: ProbeFinished, now: float) -> None:
        """Take in a probe's verdicts.

        Raises:
            IllegalTransition: no such probe is running, or the counts differ; nothing changes.
        """
        probe = self._probes.get(event.probe_id)
        if probe is None or len(probe.refs) != len(event.verdicts):
            raise IllegalTransition(f"end of probe {event.probe_id}, which is not running so")
        del self._probes[event.probe_id]
        if event.failed:
            self._breaker.failure(now, trial=probe.trial)
        else:
            self._breaker.success()
        answers = []
        for ref, verdict in zip(probe.refs, event.verdicts, strict=True):
            probing = self._sent.pop(ref)
            final = self._final(probing, verdict, now)
            answers.append((probing, (final, VerdictSource.PROBE)))
        self._deliver(answers, now)

    def outdate(self, ref: ObjectRef) -> None:
        """A transfer showed whether an object exists: a probe from before says nothing new."""
        probing = self._sent.get(ref)
        if probing is not None:
            probing.outdated = True

    def _final(self, probing: _Probing, verdict: Presence, now: float) -> Presence:
        if probing.outdated:
            return self._presence.get(probing.ref, now) or Presence.UNKNOWN
        if verdict is Presence.UNKNOWN:
            self._counters["probe_errors"] += 1
            return verdict
        return self._presence.probed(probing.ref, verdict, now)

    def _deliver(self, answers: Iterable[tuple[_Probing, _Verdict]], now: float) -> None:
        """Give verdicts to who waits for them, and go on from there."""
        touched: dict[_Group, None] = {}
        for probing, verdict in answers:
            for group, at in probing.waiters:
                group.verdicts[at] = verdict
                del group.awaited[at]
                if verdict[0] is not Presence.PRESENT and group.spec.prefix_ordered:
                    group.limit = min(group.limit, at + 1)
                touched[group] = None
        for group in touched:
            self._advance(group, now)
            self._reply_if_done(group.lookup)

    def _advance(self, group: _Group, now: float) -> None:
        """Use what is known, and ask for what comes next while the store answers."""
        while group.cursor < len(group.refs):
            if group.frontier < group.limit and len(group.awaited) < group.window:
                self._ask_ahead(group, now)
            verdict = group.verdicts[group.cursor]
            if verdict is None:
                return
            group.cursor += 1
            if not group.spec.prefix_ordered:
                continue
            if verdict[1] is VerdictSource.PROBE and not group.probed:
                group.probed = True
                self._first_wave.learn(verdict[0])
            if verdict[0] is not Presence.PRESENT:
                self._cut(group, group.cursor)
            elif verdict[1] is VerdictSource.PROBE:
                group.window += _GROWTH

    def _cut(self, group: _Group, at: int) -> None:
        """Answer UNKNOWN from a position on, and want no probe of it any more."""
        group.verdicts[at:] = [_CUTOFF] * (len(group.refs) - at)
        group.cursor = len(group.refs)
        self._release(group)

    def _ask_ahead(self, group: _Group, now: float) -> None:
        """Fill in what is known from the frontier on; want probes for others while there is room.

        Nothing behind a known absence is asked for.
        """
        for at in range(group.frontier, group.limit):
            if len(group.awaited) >= group.window:
                return
            group.frontier = at + 1
            known = self._presence.get(group.refs[at], now)
            if known is None:
                self._want(group, at, group.refs[at])
            else:
                group.verdicts[at] = (known, VerdictSource.INDEX)
                if known is Presence.ABSENT and group.spec.prefix_ordered:
                    group.limit = at + 1
                    return

    def _want(self, group: _Group, at: int, ref: ObjectRef) -> None:
        """Wait for the object's probe, a new one if need be and the bound allows."""
        probing = self._sent.get(ref) or self._unsent.get(ref)
        if probing is None:
            if len(self._unsent) >= self._settings.max_probing_keys * _MAX_UNSENT_PER_PROBING:
                group.verdicts[at] = _CUTOFF
                return
            probing = self._unsent[ref] = _Probing(ref)
        probing.waiters[group, at] = None
        group.awaited[at] = probing

    def _fail_unsent(self, now: float) -> None:
        """Answer UNKNOWN for everything that can't be probed now."""
        while self._unsent:
            unsent, self._unsent = self._unsent, {}
            self._deliver([(probing, _CUTOFF) for probing in unsent.values()], now)

    def _reply_if_done(self, lookup: _Lookup) -> None:
        if lookup.lookup_id in self._open and all(g.finished for g in lookup.groups):
            self._reply(lookup)

    def _look_up_rest(self, group: _Group, now: float) -> None:
        """Fill in what is known of an unordered group's keys that were not asked for yet."""
        if not group.spec.prefix_ordered:
            for at in range(group.frontier, len(group.refs)):
                known = self._presence.get(group.refs[at], now)
                if known is not None:
                    group.verdicts[at] = (known, VerdictSource.INDEX)

    def _give_up(self, lookup: _Lookup) -> None:
        for group in lookup.groups:
            if group.spec.prefix_ordered and not group.finished:
                self._cut(group, group.cursor)
        self._reply(lookup)

    def _reply(self, lookup: _Lookup) -> None:
        verdicts = []
        for group in lookup.groups:
            known = [verdict or _CUTOFF for verdict in group.verdicts]
            verdicts.append(tuple(presence for presence, _source in known))
            for (presence, source), count in Counter(known).items():
                self._counters[f"verdicts_{presence.name.lower()}_{source}"] += count
        del self._open[lookup.lookup_id]
        self._close(lookup)
        self._emit(LookupReply(lookup.lookup_id, tuple(verdicts)))

    def _close(self, lookup: _Lookup) -> None:
        for group in lookup.groups:
            self._release(group)

    def _release(self, group: _Group) -> None:
        """Wait for nothing any more; drop unsent probes that nobody else waits for."""
        for at, probing in group.awaited.items():
            del probing.waiters[group, at]
            if not probing.waiters:
                self._unsent.pop(probing.ref, None)
        group.awaited.clear()
