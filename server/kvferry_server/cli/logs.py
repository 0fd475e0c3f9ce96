"""The daemon's log: text or JSON lines on standard error.

Owns the handler and its rate limit: of lines that differ in their values only, a few are written in
a row, then they are counted. So are lines that nobody takes: a reader of stderr that has stopped
holds nothing up. Only kvferry's own loggers follow the level, which `SetLogLevel`
changes at run time: libraries stay at WARNING, since at DEBUG they write request headers, session
tokens included. Imports the standard library only.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime

from .text import printable

WINDOW_SECONDS = 10.0
BURST = 10
_PIECE_BYTES = select.PIPE_BUF
"""What a pipe that is ready for writing takes without waiting."""


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{_time(record)} {record.levelname:<7} {_logger_name(record)}: "
            f"{printable(record.getMessage())}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": _logger_name(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _logger_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix("kvferry_server.")


def last_words(message: str) -> None:
    """Say why a command ends, as JSON if the log is JSON."""
    handlers = logging.getLogger().handlers
    if any(isinstance(each.formatter, _JsonFormatter) for each in handlers):
        logging.getLogger("kvferry_server.cli").critical("%s", message)
    else:
        print(f"kvferry: {message}", file=sys.stderr)


class RateLimit(logging.Filter):
    """Lets `BURST` lines of one template pass within `WINDOW_SECONDS`, and counts the others.

    Lines of level DEBUG all pass: who asks for them wants them.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno <= logging.DEBUG or getattr(record, "counted", False):
            return True
        now = self._monotonic()
        with self._lock:
            window = self._windows.setdefault((record.name, str(record.msg)), _Window(record))
            if now >= window.ends:
                window.ends, window.passed = now + WINDOW_SECONDS, 0
            window.passed += 1
            if window.passed <= BURST:
                return True
            window.suppressed += 1
            window.record = record
            return False

    def summaries(self) -> list[logging.LogRecord]:
        """One line for each template whose window is over and that had lines suppressed."""
        now = self._monotonic()
        with self._lock:
            over = {key: each for key, each in self._windows.items() if now >= each.ends}
            for key in over:
                del self._windows[key]
        return [each.summary() for each in over.values() if each.suppressed]


class _Window:
    """What passed of one template."""

    def __init__(self, record: logging.LogRecord) -> None:
        self.record = record
        self.ends = 0.0
        self.passed = 0
        self.suppressed = 0

    def summary(self) -> logging.LogRecord:
        last = self.record
        text = f"{self.suppressed} more lines like this were suppressed, the last: %s"
        made = logging.LogRecord(
            last.name, last.levelno, last.pathname, last.lineno, text, (last.getMessage(),), None
        )
        made.counted = True
        return made


class StandardError(logging.Handler):
    """Writes lines, and counts those that it would have to wait for.

    Args:
        descriptor: of standard error.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._ready = select.poll()
        self._ready.register(self._descriptor, select.POLLOUT)
        self._lost = 0
        self._torn = b""
        """What ends a line of which only the beginning was taken."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        try:
            self.tell_lost()
            if self._lost or not self._write(self.format(record)):
                self._lost += 1
        except Exception:  # noqa: BLE001 -- as every handler of logging
            self.handleError(record)

    def tell_lost(self) -> None:
        """Say how many lines were lost, as soon as somebody reads again."""
        if self._lost:
            text = "%d lines were lost, because nobody read standard error"
            name, level = "kvferry_server.cli.logs", logging.WARNING
            lost = logging.LogRecord(name, level, __file__, 0, text, (self._lost,), None)
            if self._write(self.format(lost)):
                self._lost = 0

    def _write(self, line: str) -> bool:
        """False if not all of it was taken."""
        data = self._torn + line.encode(errors="backslashreplace") + b"\n"
        left = memoryview(data)
        while left and self._ready.poll(0):
            try:
                left = left[os.write(self._descriptor, left[:_PIECE_BYTES]) :]
            except OSError:
                break
        if len(left) < len(data):
            self._torn = b"\n" if left else b""
        return not left


_limit = RateLimit()


def flush() -> None:
    """Write what was counted instead of written. Called every now and then."""
    for record in _limit.summaries():
        logging.getLogger().handle(record)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StandardError):
            with handler.lock or nullcontext():
                handler.tell_lost()


def set_up(level: str, form: str) -> None:
    """Send all logging to standard error.

    Args:
        level: "debug", "info", "warning" or "error", for kvferry's own loggers.
        form: "text" or "json".
    """
    handler = StandardError(sys.stderr.fileno())
    handler.addFilter(_limit)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False
    logging.captureWarnings(capture=True)
    logging.getLogger("kvferry_server").setLevel(level.upper())
