"""The temporary files of a file store: named, fenced from other daemons, swept after a crash.

Owns: `<root>/.tmp/kvferry-<16 hex digits>/<number>.part`. Each daemon has one such directory and
holds a lock on it while it lives; a directory that can be locked is a dead daemon's, and its
`.part` files are removed. Nothing else is ever removed. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import secrets
from pathlib import Path

AREA = ".tmp"
"""Name of the temporary area under the root; no object may be called so."""

_OWNER = re.compile(r"kvferry-[0-9a-f]{16}")
_PART = re.compile(r"[0-9]+\.part")


class Staging:
    """One daemon's directory for files that are not complete yet.

    Args:
        root: the store's directory, which exists.

    Raises:
        OSError: the directory can't be made or locked.
    """

    def __init__(self, root: Path) -> None:
        area = root / AREA
        area.mkdir(mode=0o700, exist_ok=True)
        self._root = root
        self._root_was = root.stat()
        self._numbers = itertools.count(1)
        while True:
            self._directory = area / f"kvferry-{secrets.token_hex(8)}"
            self._directory.mkdir(mode=0o700)
            self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if _is_open_as(self._directory, self._lock):
                return
            os.close(self._lock)  # swept by another daemon before it was locked

    def new_path(self) -> str:
        """A name that no file has."""
        return f"{self._directory}/{next(self._numbers)}.part"

    def exists(self) -> bool:
        """Whether the directory is still where it was made.

        Raises:
            OSError: that can't be found out.
        """
        return _is_open_as(self._directory, self._lock)

    def root_stays(self) -> bool:
        """Whether the root can be looked at and is the directory that it was."""
        with contextlib.suppress(OSError):
            return os.path.samestat(self._root.stat(), self._root_was)
        return False

    def close(self) -> None:
        """Remove the directory, unless there are files in it."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()
        os.close(self._lock)


def sweep(root: Path) -> int:
    """Remove what dead daemons left in the temporary area; how many files were removed.

    Raises:
        OSError: the area can't be read or a file can't be removed.
    """
    area = root / AREA
    try:
        owners = [path for path in area.iterdir() if _OWNER.fullmatch(path.name)]
    except FileNotFoundError:
        return 0
    return sum(_sweep_owner(path) for path in owners)


def _sweep_owner(directory: Path) -> int:
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return 0
    try:
        names = os.listdir(lock)  # noqa: PTH208 - by descriptor: what was locked
        stale = [name for name in names if _PART.fullmatch(name)]
        for name in stale:
            os.unlink(name, dir_fd=lock)
        with contextlib.suppress(OSError):  # a foreign file is in it
            directory.rmdir()
        return len(stale)
    finally:
        os.close(lock)


def _is_open_as(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
