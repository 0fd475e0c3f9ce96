"""Standard input, output and error when they are not what a program expects.

Imports the standard library only.
"""

from __future__ import annotations

import errno
import io
import os
import sys

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_ERROR = 2


def open_closed() -> None:
    """Open /dev/null for each standard stream that is closed.

    The next file or socket would get its descriptor, and whatever prints would write into that.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _ERROR:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 -- takes no keyword
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(_ERROR, "w")


def write_anything() -> None:
    """Write as an escape what the terminal's encoding does not have, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Write no more, so that what is still buffered can't fail when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def explain(error: OSError) -> str:
    """What the system refused, in one line."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if error.errno in _FULL:
        return f"the output can't be written: {error.strerror}"
    return error.strerror or str(error)
