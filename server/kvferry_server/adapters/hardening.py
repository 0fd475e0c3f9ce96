"""Keeps the process's memory to itself and ends it when its event loop is stuck."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

_log = logging.getLogger(__name__)

_PR_SET_DUMPABLE = 4
ABORT_STATUS = 70
"""Exit status of a crash-only end (EX_SOFTWARE)."""
_LAST_WORDS_SECONDS = 1.0


def forbid_dumps() -> None:
    """Close /proc/self/mem and ptrace to processes of the own uid, and write no core.

    Raises:
        OSError: the kernel refused.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def allow_descriptors() -> None:
    """Raise the soft limit of open descriptors to the hard one.

    1,024 is a common soft limit; an S3 connection takes two, and while credentials change there are
    those of the old agents too.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def abort(reason: str) -> NoReturn:
    """End the process at once, without clean-up: its mappings and leases end with it.

    A log that can't be written, or whose lock a stuck thread holds, doesn't keep it.
    """
    try:
        last_words = threading.Thread(target=_say, args=(reason,), daemon=True)
        last_words.start()
        last_words.join(_LAST_WORDS_SECONDS)
    finally:
        os._exit(ABORT_STATUS)


def _say(reason: str) -> None:
    _log.critical("ending at once: %s", reason)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


class LoopWatchdog:
    """A thread that calls `on_stall` when the event loop is silent for too long.

    Only time in which this thread itself was seen running counts: a paused process
    (SIGSTOP, a frozen container, a suspended machine) is not a stuck loop.

    Args:
        limit_seconds: silence that ends the process.
        on_stall: called once with the reason; does not return in the daemon.
        check_seconds: how often the thread looks.
        sleep: waits for so many seconds; returns True to end the thread. For tests.
        monotonic: the clock. For tests.
    """

    def __init__(
        self,
        limit_seconds: float,
        on_stall: Callable[[str], object] = abort,
        check_seconds: float = 0.5,
        sleep: Callable[[float], bool] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit_seconds
        self._on_stall = on_stall
        self._check = check_seconds
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._monotonic = monotonic
        self._beats = 0

    def beat(self) -> None:
        """The loop lives. Called on the loop's thread."""
        self._beats += 1

    def start(self) -> None:
        """Watch from now on."""
        threading.Thread(target=self._watch, name="kvferry-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped.set()

    def _watch(self) -> None:
        seen = self._beats
        silent = 0.0
        before = self._monotonic()
        while not self._sleep(self._check):
            now = self._monotonic()
            ran = min(now - before, 2 * self._check)
            before = now
            if self._beats != seen:
                seen = self._beats
                silent = 0.0
                continue
            silent += ran
            if silent >= self._limit:
                self._on_stall(f"the event loop was silent for {silent:.0f} s")
                return
