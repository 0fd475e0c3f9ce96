"""Looks at a directory that is to hold objects and says what is in the way.

Owns: a write of a few megabytes beside the objects, removed at once. Imports core only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path

from .findings import Cause, Finding, Level

SAMPLE_BYTES = 8 << 20
LOW_BYTES = 1 << 30
_CAUSES = {
    errno.ENOSPC: (Cause.DISK, "free some space, or name another directory in store.url"),
    errno.EDQUOT: (Cause.DISK, "raise the quota, or name another directory in store.url"),
    errno.EROFS: (Cause.DISK, "mount it read-write, or name another directory in store.url"),
    errno.EACCES: (Cause.PERMISSION, "change its owner or mode"),
    errno.EPERM: (Cause.PERMISSION, "change its owner or mode"),
    errno.ENOTDIR: (Cause.BUCKET, "a file is in the way: name another directory in store.url"),
}


class FileDoctor:
    """The looks at one directory.

    Args:
        root: the store's directory; made if it isn't there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def look(self) -> list[Finding]:
        """Blocking: whether it can be made, and has room."""
        began = time.monotonic()
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write()
            usage = os.statvfs(self._root)
        except OSError as error:
            cause, advice = _CAUSES.get(error.errno or 0, (Cause.OTHER, "look at the file system"))
            detail = f"{self._root}: {error.strerror}"
            seconds = time.monotonic() - began
            return [Finding("directory", Level.FAIL, detail, advice, cause, seconds)]
        free = usage.f_bavail * usage.f_frsize
        low = free < LOW_BYTES
        return [
            Finding(
                "space",
                Level.WARN if low else Level.OK,
                f"{free / 2**30:.1f} GiB free",
                "nothing is ever deleted here: give it more room" if low else "",
                Cause.DISK if low else None,
                time.monotonic() - began,
            )
        ]

    def _write(self) -> None:
        """Reserve and write a sample.

        Raises:
            OSError: the file system refused; nothing is left behind.
        """
        path = self._root / f".kvferry-check-{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SAMPLE_BYTES)
            os.write(descriptor, bytes(4096))
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Remove an object by its name."""
        path = self._root / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others use the folder
            path.parent.rmdir()
