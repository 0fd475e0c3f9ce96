"""The daemon's log: text or JSON lines on standard error.

Owns the handler. Only kvferry's own loggers follow the level, which `SetLogLevel` changes at run
time: libraries stay at WARNING, since at DEBUG they write request headers, session tokens included.
Imports the standard library only.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from .text import printable


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


def set_up(level: str, form: str) -> None:
    """Send all logging to standard error.

    Args:
        level: "debug", "info", "warning" or "error", for kvferry's own loggers.
        form: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False
    logging.captureWarnings(capture=True)
    logging.getLogger("kvferry_server").setLevel(level.upper())
