"""When credentials are read anew, and what waits for that.

Owns: the one thread that renews (so one refresh at a time, whatever asks for it), its reasons
(expiry, a changed file, a refusal, a request such as SIGHUP), and requests that were refused for
their keys and are started again with the next. Imports core and `s3_types`.

Failure: a renewal that fails leaves the keys in use as they are and is repeated with pauses that
grow to `_LONGEST_PAUSE_SECONDS`. Nothing here raises or logs a key.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .s3_types import Credentials

LOOK_SECONDS = 1.0
"""How often the files are looked at."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0
_EXPIRY_MARGIN_SECONDS = 300.0
_EXPIRY_RETRY_SECONDS = 60.0

Versions = tuple[tuple[Path, tuple[int, ...]], ...]
"""Paths, each with the version of the file that it leads to; empty if there is none."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where keys come from.

    Args:
        resolve: blocking; reads the keys anew, or raises CredentialsUnavailable.
        files: what may change there.
        wait_seconds: how long a request that was refused for its keys waits for others.
    """

    resolve: Callable[[], Credentials]
    files: Callable[[], Sequence[Path]] = tuple
    wait_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Renewed:
    """What came of a renewal.

    Args:
        settled: the keys in use are good, and no others are waiting to be accepted.
        expires_at: of the keys in use; Unix seconds, or None.
    """

    settled: bool
    expires_at: float | None = None


class Rotation:
    """Renews on one thread until it is closed.

    Args:
        renew: blocking; reads credentials anew and goes on with them if they are good.
        files: the files whose change is a reason to renew.
        now: Unix seconds.
    """

    def __init__(
        self,
        renew: Callable[[], Renewed],
        files: Callable[[], Sequence[Path]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._renew = renew
        self._files = files
        self._now = now
        self._wake = threading.Condition()
        self._asked = False
        self._closed = False
        self._seen: Versions = ()
        self._due: float | None = None
        self._thread = threading.Thread(target=self._run, name="kvferry-credentials", daemon=True)

    def watch(self, expires_at: float | None) -> None:
        """Keys are in use that expire then: see to the next from now on. May be repeated."""
        with self._wake:
            self._due = next_renewal(expires_at, self._now())
            if self._thread.ident is None and not self._closed:
                self._seen = versions(self._files())
                self._thread.start()

    def ask(self) -> None:
        """Renew soon; from any thread, returns at once."""
        with self._wake:
            self._asked = True
            self._wake.notify()

    def close(self) -> None:
        """Blocking: end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause, unsettled = _FIRST_PAUSE_SECONDS, False
        paths = [path for path, _ in self._seen]
        while True:
            with self._wake:
                if unsettled:
                    self._wake.wait_for(lambda: self._closed, pause)
                else:
                    self._wake.wait_for(lambda: self._closed or self._asked, LOOK_SECONDS)
                asked, self._asked = self._asked, False
                if self._closed:
                    return
            present = versions(paths)
            if not (asked or unsettled or present != self._seen or self._expires_soon()):
                continue
            self._seen = versions(self._files())
            paths = [path for path, _ in self._seen]
            renewed = self._attempt()
            unsettled = not renewed.settled
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS) if unsettled else _FIRST_PAUSE_SECONDS

    def _attempt(self) -> Renewed:
        try:
            renewed = self._renew()
        except Exception:  # the thread's boundary: nothing may end it
            _logger.exception("credentials could not be renewed")
            renewed = Renewed(settled=False)
        self._due = next_renewal(renewed.expires_at, self._now())
        return renewed

    def _expires_soon(self) -> bool:
        return self._due is not None and self._now() >= self._due


def versions(paths: Sequence[Path]) -> Versions:
    """What each path leads to now.

    It differs from an earlier one if a file was written, replaced, or is reached by another link,
    as when Kubernetes swaps the directory of a mounted secret.
    """
    return tuple((path, _version(path)) for path in paths)


def _version(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def next_renewal(expires_at: float | None, now: float) -> float | None:
    """When keys that expire then should be renewed; both in Unix seconds.

    Five minutes before, or, of a short life, at two thirds of what is left; and not more often
    than that, because a source may give the same keys until shortly before their end.
    """
    if expires_at is None:
        return None
    left = max(expires_at - now, 0.0)
    if left > _EXPIRY_MARGIN_SECONDS + _EXPIRY_RETRY_SECONDS:
        return expires_at - _EXPIRY_MARGIN_SECONDS
    return now + min(max(left * 2 / 3, 1.0), _EXPIRY_RETRY_SECONDS)


class Waiter(ABC):
    """A request to the store that can be started again."""

    __slots__ = ("waits_since",)

    def __init__(self) -> None:
        self.waits_since: float | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it with the keys in use."""

    @abstractmethod
    def give_up(self) -> None:
        """End it as denied."""


class Waiting:
    """Requests that wait for keys that the store accepts, each for a bounded time.

    Once one was given up, those that come later are given up at once, until keys are accepted.
    """

    def __init__(
        self, wait_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wait_seconds = wait_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []
        self._hopeless = False

    def add(self, waiter: Waiter) -> None:
        """Keep a request; it is started or given up later. Its time runs from its first wait."""
        with self._lock:
            if waiter.waits_since is None:
                waiter.waits_since = self._monotonic()
            hopeless = self._hopeless
            if not hopeless:
                self._waiters.append(waiter)
        if hopeless:
            waiter.give_up()

    def start_all(self) -> None:
        """Start everything again."""
        with self._lock:
            self._hopeless = False
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.start()

    def give_up_late(self) -> None:
        """Give up everything if one has waited long enough."""
        before = self._monotonic() - self._wait_seconds
        with self._lock:
            late = any((each.waits_since or 0.0) <= before for each in self._waiters)
        if late:
            self.give_up_all()

    def give_up_all(self) -> None:
        """Give up everything."""
        with self._lock:
            self._hopeless = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.give_up()
