"""Circuit breaker: stops asking a store that fails, and finds out when it is back."""

from __future__ import annotations

from .types import BreakerState


class Breaker:
    """Opens after consecutive infrastructure failures, closes after one success.

    While open nothing may start. After the cool-down one trial may run; its success
    closes the breaker, its failure opens it for another cool-down.

    Args:
        failures: consecutive failures that open it.
        cooldown_seconds: how long it stays open before a trial.
    """

    def __init__(self, failures: int, cooldown_seconds: float) -> None:
        self._limit = failures
        self._cooldown = cooldown_seconds
        self._consecutive = 0
        self._open_until: float | None = None
        self._trial_running = False

    def state(self, now: float) -> BreakerState:
        """CLOSED, OPEN until the cool-down is over, then HALF_OPEN."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a request may start now."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and not self._trial_running
        )

    def begin(self, now: float) -> bool:
        """Note that an allowed request starts; True if it is the trial."""
        self._trial_running = self.state(now) is BreakerState.HALF_OPEN
        return self._trial_running

    def success(self) -> None:
        """The store answered."""
        self._consecutive = 0
        self._open_until = None
        self._trial_running = False

    def failure(self, now: float, *, trial: bool) -> None:
        """The store failed or could not be reached.

        Requests that began before the breaker opened neither prolong nor shorten it; a trial
        during which another answer closed it counts like any other request.
        """
        if self._open_until is None:
            self._consecutive += 1
            if self._consecutive >= self._limit:
                self._open_until = now + self._cooldown
        elif trial:
            self._open_until = now + self._cooldown
            self._trial_running = False

    def wakeup(self) -> float | None:
        """When the state changes by time alone."""
        return self._open_until
