"""The object store `file:///dir`, over NIXL's POSIX plugin: one file per object.

Owns: names and paths, the temporary file and its rename, and what an OSError means for a chunk.
Imports core and the adapters `nixl_*`, `integrity`, `file_errors` and
`file_store_staging`.

A file appears under its object's name only when it is complete. Nothing is fsynced: after a power
cut an object may be damaged, and then fails its checksum. The store removes nothing but its own
temporary files.

Each driver runs one chunk at a time: the plugin's kernel calls block on the page cache, and its
queue is shared by all transfers of an agent. So threads are the parallelism.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from kvferry_server.core.errors import ConfigError
from kvferry_server.core.ports import CheckStep, Preflight
from kvferry_server.core.types import JobKind, Presence, TransferStatus

from .file_errors import meaning
from .file_store_staging import AREA, Staging, sweep
from .integrity import Integrity
from .nixl_driver import DriverPool, TransferDriver
from .nixl_library import NixlAgent, require_plugin
from .nixl_steps import Procedure, Steps, move
from .stored_checksums import ObjectFacts

_BACKEND_PARAMS = {"ios_pool_size": "16", "kernel_queue_size": "16"}
"""Small: the kernel's asynchronous I/O slots are counted over the whole machine."""
_PREFLIGHT_BYTES = 70_001
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_HOPELESS = frozenset({errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR})
"""The name can't be a file's: a fault on this side."""

ProbeDone = Callable[[Sequence[Presence] | None], None]

_logger = logging.getLogger(__name__)


class FileObjectStore:
    """`ObjectStore` on a directory.

    Args:
        root: absolute path; made with mode 0700 if missing.
        integrity: what is done around each transfer.
        threads: chunks in transfer at once.

    Raises:
        ConfigError: the path is not absolute, or NIXL or its POSIX plugin is missing.
    """

    exact_size = True

    def __init__(self, root: Path, *, integrity: Integrity, threads: int = 8) -> None:
        if not root.is_absolute():
            raise ConfigError(
                f"the store's directory {root} must be an absolute path: file:///var/lib/kvferry",
                reason="STORE_URL",
                field="store.url",
            )
        require_plugin("POSIX")
        self._root = root
        self._root_path = str(root)
        self._integrity = integrity
        self._threads = threads
        self._preflight_lock = threading.Lock()
        self._staging_lock = threading.Lock()
        self._staging: Staging | None = None
        self._ready = False
        self._probes = ThreadPoolExecutor(1, "kvferry-file-probe")
        self._questions = ThreadPoolExecutor(1, "kvferry-file-question")
        self._pool = DriverPool(
            threads,
            lambda number, waiting: TransferDriver(
                NixlAgent("POSIX", _BACKEND_PARAMS),
                self._questions,
                capacity=1,
                name=f"kvferry-file-{number}",
                waiting=waiting,
            ),
        )

    @property
    def url(self) -> str:
        """`file:///dir`."""
        return self._root.as_uri()

    @property
    def max_active_chunks(self) -> int:
        """One for each thread."""
        return self._threads

    def transfer(
        self,
        kind: JobKind,
        name: str,
        buffer: memoryview,
        done: Callable[[TransferStatus], None],
    ) -> None:
        """See `ObjectStore.transfer`."""
        if not self._ready:
            done(TransferStatus.UNAVAILABLE)
            return
        run = self._integrity.store if kind is JobKind.STORE else self._integrity.load
        self._pool.submit(run(self, name, buffer), done)

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        """See `ObjectStore.probe`."""
        if self._ready:
            self._probes.submit(self._answer, tuple(names), done)
        else:
            done(None)

    def preflight(self) -> Preflight:
        """See `ObjectStore.preflight`.

        One that fails leaves a store that already works as it is.
        """
        steps: list[CheckStep] = []
        problem = ""
        with self._preflight_lock:
            for name, action in (
                ("directory", self._open_root),
                ("temporary files", self._open_staging),
                ("round trip", self._round_trip),
            ):
                began = time.monotonic()
                try:
                    detail = action()
                except OSError as error:
                    why, advice = error.strerror or str(error), meaning(error)[1]
                    problem = f"directory {self._root}: {why}: {advice}"
                    detail = problem
                seconds = time.monotonic() - began
                steps.append(CheckStep(name, passed=not problem, detail=detail, seconds=seconds))
                if problem:
                    break
            else:
                self._ready = True
        settings = "" if problem else "one file per object, no fsync"
        return Preflight(not problem, settings=settings, problem=problem, steps=tuple(steps))

    def refresh_credentials(self) -> None:
        """A directory needs none."""

    def close(self) -> None:
        """See `ObjectStore.close`."""
        with self._preflight_lock:
            self._ready = False
            self._pool.close()
            self._probes.shutdown()
            self._questions.shutdown()
            self._integrity.close()
            if self._staging is not None:
                self._staging.close()
                self._staging = None

    def write(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Part of `ChunkMover`."""
        try:
            return (yield from self._write(self._path(name), buffer))
        except OSError as error:
            self._complain("store", error)
            return _status(error) if self._is_reachable() else TransferStatus.UNAVAILABLE

    def read(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Part of `ChunkMover`."""
        try:
            return (yield from _read(self._path(name), buffer))
        except OSError as error:
            reachable = self._is_reachable()
            if reachable and error.errno in _ABSENT:
                return TransferStatus.MISSING
            self._complain("load", error)
            return _status(error) if reachable else TransferStatus.UNAVAILABLE

    def facts(self, name: str) -> Steps[ObjectFacts | None]:
        """Part of `ChunkMover`."""
        yield from ()
        with contextlib.suppress(OSError):
            return ObjectFacts(Path(self._path(name)).stat().st_size)
        return None

    def _write(self, path: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Write a temporary file and give it the object's name.

        Raises:
            OSError: the file system refused; nothing is left behind.
        """
        temporary, descriptor = self._open_temporary()
        renamed = False
        try:
            os.posix_fallocate(descriptor, 0, buffer.nbytes)
            if not (yield from move(JobKind.STORE, buffer, descriptor)):
                return TransferStatus.UNAVAILABLE
            _rename(temporary, path)
            renamed = True
        finally:
            os.close(descriptor)
            if not renamed:
                Path(temporary).unlink(missing_ok=True)
        return TransferStatus.OK

    def _open_temporary(self) -> tuple[str, int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        if self._staging is not None:
            path = self._staging.new_path()
            with contextlib.suppress(FileNotFoundError):  # somebody emptied the store
                return path, os.open(path, flags, 0o600)
        path = self._current_staging().new_path()
        return path, os.open(path, flags, 0o600)

    def _current_staging(self) -> Staging:
        """The temporary area, made again if it is gone but the root is there."""
        with self._staging_lock:
            present = self._staging
            if present is not None and present.exists():
                return present
            made = self._staging = Staging(self._root)
            if present is not None:
                present.close()
            return made

    def _complain(self, verb: str, error: OSError) -> None:
        """Log what the file system said: a chunk's outcome doesn't tell a full disk from others."""
        advice = meaning(error)[1]
        _logger.warning("can't %s in %s: %s: %s", verb, self._root, error.strerror, advice)

    def _is_reachable(self) -> bool:
        """Whether a name that is not found is really absent: no unmounted or renamed root."""
        staging = self._staging
        return staging is not None and staging.root_stays()

    def _path(self, name: str) -> str:
        """Where an object is.

        Raises:
            OSError: the name would lead out of the root or into the temporary area.
        """
        parts = name.split("/")
        if not parts[0] or parts[0] == AREA or ".." in parts or "\0" in name:
            raise OSError(errno.EINVAL, "not an object's name")
        return f"{self._root_path}/{name}"

    def _answer(self, names: Sequence[str], done: ProbeDone) -> None:
        answers = [self._presence(name) for name in names]
        reachable = self._is_reachable()
        try:
            done(answers if reachable else None)
        except Exception:  # the thread's boundary
            _logger.exception("the receiver of a probe's answers failed")

    def _presence(self, name: str) -> Presence:
        try:
            found = Path(self._path(name)).stat(follow_symlinks=False)
        except OSError as error:
            return Presence.ABSENT if error.errno in _ABSENT else Presence.UNKNOWN
        return Presence.PRESENT if stat.S_ISREG(found.st_mode) else Presence.ABSENT

    def _open_root(self) -> str:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "not readable and writable")
        return "exists, readable and writable"

    def _open_staging(self) -> str:
        removed = sweep(self._root)
        self._current_staging()
        return f"{removed} stale ones removed"

    def _round_trip(self) -> str:
        """Put, get and compare a file that no object's name can reach, then delete it."""
        path = self._current_staging().new_path()
        sent = secrets.token_bytes(_PREFLIGHT_BYTES)
        received = bytearray(byte ^ 0xFF for byte in sent)
        try:
            self._run(self._write(path, memoryview(bytearray(sent))), "writing")
            self._run(_read(path, memoryview(received)), "reading")
        finally:
            Path(path).unlink(missing_ok=True)
        if received != sent:
            raise OSError(errno.EIO, "a file holds other bytes than were written to it")
        return f"{_PREFLIGHT_BYTES} bytes written, read, compared, deleted"

    def _run(self, procedure: Procedure, verb: str) -> None:
        errors: list[OSError] = []
        ended: Future[TransferStatus] = Future()
        self._pool.submit(_keeping_error(procedure, errors), ended.set_result)
        status = ended.result()
        if errors:
            raise errors[0]
        if status is not TransferStatus.OK:
            raise OSError(errno.EIO, f"{verb} a file failed")


def _keeping_error(procedure: Procedure, errors: list[OSError]) -> Procedure:
    try:
        return (yield from procedure)
    except OSError as error:
        errors.append(error)
        return _status(error)


def _read(path: str, buffer: memoryview) -> Steps[TransferStatus]:
    """Fill the slot from a file.

    Raises:
        OSError: the file can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != buffer.nbytes:
            return TransferStatus.WRONG_SIZE
        done = yield from move(JobKind.LOAD, buffer, descriptor)
        return TransferStatus.OK if done else TransferStatus.UNAVAILABLE
    finally:
        os.close(descriptor)


def _rename(temporary: str, path: str) -> None:
    try:
        os.rename(temporary, path)  # noqa: PTH104 - a Path costs more than the call
    except FileNotFoundError:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.rename(temporary, path)  # noqa: PTH104


def _status(error: OSError) -> TransferStatus:
    """How a chunk ends that the file system refused."""
    if error.errno in _DENIED:
        return TransferStatus.DENIED
    return TransferStatus.INTERNAL if error.errno in _HOPELESS else TransferStatus.UNAVAILABLE
