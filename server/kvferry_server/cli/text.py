"""Text for people: values that others chose, made harmless; sizes and times with units.

Imports the standard library only.
"""

from __future__ import annotations

import re

_KIBI = 1024
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with control characters written out, such as `\x1b`: no terminal codes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def size(count: float) -> str:
    """Bytes in binary units: `1.5 GiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= _KIBI and len(units) > 1:
        count /= _KIBI
        units.pop(0)
    return f"{count:.4g} {units[0]}"


def span(seconds: float) -> str:
    """A time span in its two largest units: `3 h 12 min`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "min"), (second, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in parts[:2])
