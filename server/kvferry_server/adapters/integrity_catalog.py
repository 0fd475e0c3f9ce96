"""What is known of objects: length and checksum, in memory and, if wanted, in a file.

Owns: `ChecksumCatalog`, which decides what is the newest knowledge. Imports `integrity_file` and
`nixl_steps`.

Each entry bears a stamp, a number that only grows. So whoever compared an object with an entry
can remove just that entry, and never the one of a store that finished meanwhile.

Memory holds what was stored or learnt last. The file holds checksums only, and is asked for what
memory doesn't know; that question is a step of its own, so no driver thread waits for a disk.

Threads: any; locked.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from .integrity_file import CatalogFile, Stored
from .nixl_steps import Steps, ask

DEFAULT_CATALOG_BYTES = 128 << 20

_ENTRY_BYTES = 384
"""Upper bound of what one entry takes: digest, value, and their place in the ordered table."""


class Expectation(NamedTuple):
    """What is known of an object.

    Args:
        length: bytes.
        crc: CRC32C of its content; None if only the length is known.
        stamp: which entry of the catalog says so; given by the catalog.
    """

    length: int
    crc: int | None
    stamp: int = 0


class ChecksumCatalog:
    """Length and checksum of the objects seen last, bounded in memory.

    Args:
        max_bytes: upper bound of its memory; the entries used least recently go first.
        file: keeps the checksums over a restart; None keeps nothing. The catalog closes it.
    """

    def __init__(
        self, max_bytes: int = DEFAULT_CATALOG_BYTES, file: CatalogFile | None = None
    ) -> None:
        self._max_entries = max(1, max_bytes // _ENTRY_BYTES)
        self._file = file
        self._stamp = file.last_stamp if file is not None else 0
        self._entries: OrderedDict[bytes, Expectation] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Expectation | None:
        """What memory knows of the object `name`."""
        digest = _digest(name)
        with self._lock:
            found = self._entries.get(digest)
            if found is not None:
                self._entries.move_to_end(digest)
            return found

    def find(self, name: str) -> Steps[Expectation | None]:
        """What memory or the file knows of the object `name`."""
        found = self.get(name)
        file = self._file
        if file is None or (found is not None and found.crc is not None):
            return found
        digest = _digest(name)
        stored = yield from ask(lambda: file.read(digest))
        return found if stored is None else Expectation(*stored)

    def put(self, name: str, expectation: Expectation) -> None:
        """Remember an object that was just stored."""
        digest = _digest(name)
        with self._lock:
            self._keep(digest, expectation)

    def learn(self, name: str, expectation: Expectation) -> None:
        """Remember what a load found of an object, unless something is known already."""
        digest = _digest(name)
        with self._lock:
            if digest not in self._entries:
                self._keep(digest, expectation)

    def drop(self, name: str) -> None:
        """Forget an object, whatever is known of it."""
        digest = _digest(name)
        with self._lock:
            self._stamp += 1
            self._entries.pop(digest, None)
            if self._file is not None:
                self._file.remove(digest, self._stamp)

    def forget(self, name: str, expectation: Expectation) -> None:
        """Forget what `expectation` says of an object, and nothing newer."""
        digest = _digest(name)
        with self._lock:
            known = self._entries.get(digest)
            if known is not None and known.stamp <= expectation.stamp:
                del self._entries[digest]
            if self._file is not None:
                self._file.remove(digest, expectation.stamp)

    def close(self) -> None:
        """Write what is not written yet and close the file. May be repeated."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _keep(self, digest: bytes, expectation: Expectation) -> None:
        """In memory and, if there is a checksum, in the file."""
        self._stamp += 1
        self._entries[digest] = expectation._replace(stamp=self._stamp)
        self._entries.move_to_end(digest)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        if self._file is not None and expectation.crc is not None:
            self._file.write(digest, Stored(expectation.length, expectation.crc, self._stamp))


def _digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()
