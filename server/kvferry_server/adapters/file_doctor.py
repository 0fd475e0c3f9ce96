"""Looks at a directory that is to hold objects and says what is in the way. Changes nothing there.

Owns: a scratch directory beside the objects, in which a store is tried out, and its removal. Where
the store's directory does not exist yet, that is in the nearest one that does. Imports core only.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .file_errors import meaning
from .findings import Cause, Finding, Level

SAMPLE_BYTES = 8 << 20
LOW_BYTES = 1 << 30


class FileDoctor:
    """The looks at one directory.

    Args:
        root: the store's directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def look(self) -> list[Finding]:
        """Blocking: whether it is there or can be made, and has room."""
        began = time.monotonic()
        try:
            place = self._place()
            self._write(place)
            usage = os.statvfs(place)
        except OSError as error:
            cause, advice = meaning(error)
            detail = f"{self._root}: {error.strerror}"
            seconds = time.monotonic() - began
            return [Finding("directory", Level.FAIL, detail, advice, cause, seconds)]
        return [self._directory(place, time.monotonic() - began), _space(usage)]

    @contextmanager
    def trial(self) -> Iterator[str]:
        """URL of a store that may be written to inside the block; nothing of it stays."""
        with tempfile.TemporaryDirectory(prefix=".kvferry-check-", dir=self._place()) as scratch:
            yield Path(scratch).as_uri()

    def delete(self, *names: str) -> None:
        """The trial's directory goes as a whole."""

    def _directory(self, place: Path, seconds: float) -> Finding:
        if place == self._root:
            detail = f"{place} exists, readable and writable"
            return Finding("directory", Level.OK, detail, seconds=seconds)
        return Finding(
            "directory",
            Level.WARN,
            f"{self._root} does not exist; the daemon would make it in {place}",
            "if that is not what you mean, correct store.url",
            Cause.BUCKET,
            seconds,
        )

    def _place(self) -> Path:
        """The store's directory, or the nearest one above that exists.

        Raises:
            OSError: it is no directory, or can't be used.
        """
        place = self._root
        while not os.path.lexists(place):
            place = place.parent
        next(place.iterdir(), None)
        return place

    def _write(self, place: Path) -> None:
        """Reserve and write a sample.

        Raises:
            OSError: the file system refused; nothing is left behind.
        """
        with tempfile.NamedTemporaryFile(prefix=".kvferry-check-", dir=place) as sample:
            os.posix_fallocate(sample.fileno(), 0, SAMPLE_BYTES)
            sample.write(bytes(4096))
            sample.flush()


def _space(usage: os.statvfs_result) -> Finding:
    free = usage.f_bavail * usage.f_frsize
    low = free < LOW_BYTES
    return Finding(
        "space",
        Level.WARN if low else Level.OK,
        f"{free / 2**30:.1f} GiB free",
        "nothing is ever deleted here: give it more room" if low else "",
        Cause.DISK if low else None,
    )
