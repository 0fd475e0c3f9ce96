"""Shows readings of a daemon once, or again and again until Ctrl-C.

Owns the redrawing, and leaves the terminal as it was. An absent daemon is a state to show while
watching, and an error otherwise.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable

from kvferry_server.core.errors import Unavailable

WATCH_SECONDS = 1.0
_INDENT = " " * 10
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def show(read: Callable[[], str], *, watch: bool, as_json: bool) -> int:
    """Print what `read` returns.

    Args:
        read: takes a reading and words it.
        watch: again each second until Ctrl-C, in place of the last one if this is a terminal.
        as_json: the readings are JSON objects, one a line.

    Raises:
        Unavailable: no daemon answers (without `watch`).
        FailedPrecondition: it answers with an error.
    """
    if not watch:
        print(read())
        return 0
    screen = sys.stdout.isatty() and not as_json
    try:
        if screen:
            signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
            print(_ENTER, end="")
        while True:
            text = _read(read, as_json=as_json)
            if screen:
                text = fitted(text, *shutil.get_terminal_size())
            print(text, end="" if screen else "\n", flush=True)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0
    finally:
        if screen:
            print(_LEAVE, end="", flush=True)


def _read(read: Callable[[], str], *, as_json: bool) -> str:
    try:
        return read()
    except Unavailable as error:
        return json.dumps({"error": error.message}) if as_json else f"{error.message}; waiting"


def fitted(text: str, columns: int, rows: int) -> str:
    """The text over the last one, without flicker and without scrolling."""
    lines = [piece for line in text.splitlines() for piece in _wrapped(line, columns)]
    if len(lines) > rows:
        lines = [*lines[: rows - 1], f"({len(lines) - rows + 1} more lines)"]
    return _HOME + "\n".join(line + _CLEAR_LINE for line in lines) + _CLEAR_REST


def _wrapped(line: str, columns: int) -> list[str]:
    """The line in pieces that fit; the further ones are indented if there is room for it."""
    indent = _INDENT if columns > 2 * len(_INDENT) else ""
    return textwrap.wrap(line, columns, subsequent_indent=indent, drop_whitespace=False) or [""]
