"""The file of the checksum catalog: an SQLite database that survives the daemon, and its loss.

Owns: the file, its one connection and the thread that writes. Imports core and the standard
library.

* Changes are queued in memory and written in batches, so no caller waits for the disk; reads are
  for threads that may wait. What a killed daemon had not written yet is not known after it.
* The file is a cache. One that can't be read is set aside and begun anew; one that can't be
  written costs a line in the log, and the daemon goes on with what it has in memory.
* The connection is exclusive: another daemon can't use the same file, and nothing is mapped into
  memory, so that not even a truncated file can end the process.
* Nothing is fsynced: after a power cut the file may be damaged, and then is begun anew.
* A stale entry never does harm: the object's bytes don't match, which is a miss.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

DEFAULT_MAX_ENTRIES = 4_000_000

_VERSION = 1
_SCHEMA = (
    "CREATE TABLE objects (stamp INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE,"
    " length INTEGER NOT NULL, crc INTEGER NOT NULL)"
)
_BATCH_SECONDS = 0.25
_RETRY_SECONDS = 10.0
_BATCH_ENTRIES = 2_000
"""Changes in one transaction; a read waits for one transaction at most."""
_MAX_PENDING = 200_000
"""Changes that wait for a disk that takes none; the oldest are given up first."""
_KEPT_SHARE = 0.9
"""Of the most entries, what is left after the oldest went."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""Primary result codes that a new file cures; SQLITE_ERROR: it holds other tables."""
_MOVED = sqlite3.SQLITE_READONLY_DBMOVED
_SETTINGS = ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = OFF")
_READ = "SELECT length, crc, stamp FROM objects WHERE digest = ?"
_REMOVE = "DELETE FROM objects WHERE digest = ? AND stamp <= ?"
_WRITE = "INSERT OR REPLACE INTO objects (length, crc, stamp, digest) VALUES (?, ?, ?, ?)"
_REMOVE_OLDEST = (
    "DELETE FROM objects WHERE stamp < (SELECT stamp FROM objects ORDER BY stamp LIMIT 1 OFFSET ?)"
)

_logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """One entry: length in bytes, CRC32C, and the stamp that orders entries by age."""

    length: int
    crc: int
    stamp: int


class CatalogFile:
    """The entries of one store's catalog on disk.

    Args:
        path: of the file; its directory is made with mode 0700 if missing.
        max_entries: the entries stored longest ago go first.

    Raises:
        OSError: the file can't be made or used; another daemon may have it.
    """

    def __init__(self, path: Path, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        self._path = path
        self._max_entries = max_entries
        self._disk = threading.Lock()
        self._wake = threading.Condition()
        self._pending: OrderedDict[bytes, Stored | int] = OrderedDict()
        self._writing: dict[bytes, Stored | int] = {}
        self._closing = False
        self._failing = False
        self._damage: Exception | None = None
        self._at_most: int | None = None
        self._connection: sqlite3.Connection | None = None
        try:
            newest = self._connected().execute("SELECT max(stamp) FROM objects").fetchone()[0]
        except sqlite3.Error as error:
            raise OSError(str(error)) from error
        self.last_stamp: int = newest or 0
        self._thread = threading.Thread(target=self._run, name="kvferry-catalog", daemon=True)
        self._thread.start()

    def read(self, digest: bytes) -> Stored | None:
        """The entry of an object. Blocking: for threads that may wait for a disk."""
        with self._wake:
            change = self._pending.get(digest, self._writing.get(digest))
        if change is not None:
            return change if isinstance(change, Stored) else None
        with self._disk:
            if self._connection is None:
                return None
            try:
                row = self._connection.execute(_READ, (digest,)).fetchone()
            except sqlite3.Error as error:
                self._note(error)
                return None
        usable = row is not None and all(type(value) is int for value in row)
        return Stored(*row) if usable else None

    def write(self, digest: bytes, entry: Stored) -> None:
        """Have an entry written soon, in place of an older one."""
        with self._wake:
            self._queue(digest, entry)

    def remove(self, digest: bytes, stamp: int) -> None:
        """Have the entry of an object removed soon, unless its stamp is above `stamp`."""
        with self._wake:
            change = self._pending.get(digest, self._writing.get(digest))
            newest = change.stamp if isinstance(change, Stored) else change
            if newest is None or newest <= stamp:
                self._queue(digest, stamp)

    def close(self) -> None:
        """Blocking: write what is queued and close the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _queue(self, digest: bytes, change: Stored | int) -> None:
        """The caller holds `_wake`."""
        self._pending[digest] = change
        if len(self._pending) > _MAX_PENDING:
            self._pending.popitem(last=False)
        if len(self._pending) == 1:
            self._wake.notify()

    def _run(self) -> None:
        written = True
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._closing)
                pause = _BATCH_SECONDS if written else _RETRY_SECONDS
                self._wake.wait_for(lambda: self._closing, pause)
                closing = self._closing
            written = self._write_pending()
            if closing and (not written or not self._pending):
                break
        with self._disk:
            self._disconnect()

    def _write_pending(self) -> bool:
        """Write all that is queued, batch by batch; False if the disk took a batch not."""
        while True:
            with self._wake:
                batch = dict(islice(self._pending.items(), _BATCH_ENTRIES))
                for digest in batch:
                    del self._pending[digest]
                self._writing = batch
            if not batch:
                return True
            with self._disk:
                try:
                    self._write_batch(self._connected(), batch)
                except (OSError, sqlite3.Error) as error:
                    self._note(error)
                    self._give_back()
                    return False
            with self._wake:
                self._writing = {}
            if self._failing:
                self._failing = False
                _logger.info("the checksum catalog %s is written again", self._path)

    def _give_back(self) -> None:
        """Queue a batch again that was not written."""
        with self._wake:
            for digest, change in reversed(self._writing.items()):
                if digest not in self._pending:
                    self._pending[digest] = change
                    self._pending.move_to_end(digest, last=False)
            self._writing = {}

    def _write_batch(
        self, connection: sqlite3.Connection, batch: dict[bytes, Stored | int]
    ) -> None:
        entries = [(*entry, key) for key, entry in batch.items() if isinstance(entry, Stored)]
        removed = [(key, stamp) for key, stamp in batch.items() if not isinstance(stamp, Stored)]
        with _transaction(connection) as cursor:
            cursor.executemany(_REMOVE, removed)
            cursor.executemany(_WRITE, entries)
            self._bound(cursor, len(entries))

    def _bound(self, cursor: sqlite3.Cursor, added: int) -> None:
        """Remove the oldest entries if there may be too many; entries are counted rarely."""
        if self._at_most is not None:
            self._at_most += added
        if self._at_most is None or self._at_most > self._max_entries:
            self._at_most = int(cursor.execute("SELECT count(*) FROM objects").fetchone()[0])
        surplus = self._at_most - self._max_entries
        if surplus > 0:
            surplus += int(self._max_entries * (1 - _KEPT_SHARE))
            cursor.execute(_REMOVE_OLDEST, (surplus,))
            self._at_most -= surplus

    def _note(self, error: OSError | sqlite3.Error) -> None:
        """After a failure: give a damaged file up, to be replaced by the writer; say so once."""
        if _is_damaged(error):
            self._disconnect()
            self._damage = error
        if not self._failing:
            self._failing = True
            _logger.warning(
                "the checksum catalog %s failed (%s): checksums are in memory only meanwhile",
                self._path,
                error,
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None
        self._at_most = None

    def _connected(self) -> sqlite3.Connection:
        """The open file; a damaged one is replaced by a new one."""
        if self._connection is not None:
            return self._connection
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._damage is not None:
            self._set_aside(self._damage)
            self._damage = None
        try:
            connection = self._open()
        except sqlite3.DatabaseError as error:
            if not _is_damaged(error):
                raise
            self._set_aside(error)
            connection = self._open()
        self._connection = connection
        return connection

    def _open(self) -> sqlite3.Connection:
        """Open the file, or make it, and see that it is one of this kind."""
        connection = sqlite3.connect(
            self._path, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}")
            with _transaction(connection) as cursor:
                version = cursor.execute("PRAGMA user_version").fetchone()[0]
                tables = cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if not version and not tables:
                    cursor.execute(_SCHEMA)
                    cursor.execute(f"PRAGMA user_version = {_VERSION}")
                else:
                    _check_version(version)
                cursor.execute("SELECT stamp, digest, length, crc FROM objects LIMIT 1").fetchone()
            self._path.chmod(0o600)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        """Rename a file that is no catalog; one such file is kept."""
        aside = self._path.with_name(self._path.name + ".damaged")
        for suffix in ("-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(aside)
        _logger.warning(
            "the checksum catalog %s is damaged (%s): it was renamed to %s, and a new one begun",
            self._path,
            error,
            aside.name,
        )


class _WrongVersion(sqlite3.DatabaseError):
    def __init__(self, version: int) -> None:
        super().__init__(f"its version is {version}, not {_VERSION}")


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise _WrongVersion(version)


def _is_damaged(error: Exception) -> bool:
    if isinstance(error, _WrongVersion):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF in _DAMAGED or code == _MOVED)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """All or nothing."""
    cursor = connection.execute("BEGIN IMMEDIATE")
    try:
        yield cursor
        cursor.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            cursor.execute("ROLLBACK")
        raise
