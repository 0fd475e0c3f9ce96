"""What the daemon's log says about jobs and breakers: failures summed up, not one line each.

Owns the rate limit. Imports core only. Runs on the event loop's thread.
"""

from __future__ import annotations

import logging
from collections import Counter

from kvferry_server.core.effects import BreakerChanged, JobFinished
from kvferry_server.core.ports import Clock
from kvferry_server.core.types import BreakerState, JobKind, Outcome

SUMMARY_SECONDS = 10.0
"""Pause between two lines about failed chunks of one kind."""

_log = logging.getLogger(__name__)

_EXPECTED = frozenset(
    {
        Outcome.STORED,
        Outcome.SKIPPED_PRESENT,
        Outcome.SKIPPED_IN_FLIGHT,
        Outcome.LOADED,
        Outcome.MISSING,
        Outcome.CANCELLED,
    }
)
"""How chunks end when nothing is wrong."""

_BREAKERS = {JobKind.STORE: "writing to", JobKind.LOAD: "reading from"}


class Observer:
    """Logs what the engine reports."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[JobKind, Counter[Outcome]] = {kind: Counter() for kind in JobKind}
        self._silent_until = dict.fromkeys(JobKind, 0.0)

    def observe(self, effect: JobFinished | BreakerChanged) -> None:
        """Take in what happened."""
        if isinstance(effect, BreakerChanged):
            _log_breaker(effect)
            return
        result = effect.result
        _log.debug(
            "session %s: %s job %d of request %r ended: %s",
            effect.session_id[:8],
            result.kind.name.lower(),
            result.job_id,
            effect.request_id,
            _words(Counter(result.outcomes)),
        )
        failed = self._failed[result.kind]
        failed.update(outcome for outcome in result.outcomes if outcome not in _EXPECTED)
        failed[Outcome.SHED] -= effect.withheld
        failed += Counter()  # drops what is 0
        if failed:
            self.flush()

    def flush(self) -> None:
        """Log the failures that wait for their turn. Called every now and then."""
        now = self._clock.monotonic()
        for kind, failed in self._failed.items():
            if failed and now >= self._silent_until[kind]:
                _log.warning("%s of chunks failed: %s", kind.name.lower(), _words(failed))
                failed.clear()
                self._silent_until[kind] = now + SUMMARY_SECONDS


def _log_breaker(change: BreakerChanged) -> None:
    what = _BREAKERS[change.kind]
    match change.state:
        case BreakerState.OPEN:
            _log.warning("breaker open: %s the store fails, no more attempts for now", what)
        case BreakerState.HALF_OPEN:
            _log.info("breaker half-open: %s the store is tried again", what)
        case BreakerState.CLOSED:
            _log.info("breaker closed: %s the store works", what)


def _words(outcomes: Counter[Outcome]) -> str:
    return ", ".join(f"{count} {outcome.name}" for outcome, count in outcomes.most_common())
