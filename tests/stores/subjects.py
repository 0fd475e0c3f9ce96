"""What the contract suite runs on: an object store and a way behind its back.

Owns: `StoreSubject`, one for the file store and one for any S3 server of `tests.support`, and the
recorder of transfers. A suite parametrises the fixture `subject` of `tests.stores.contract` by
name: `file`, or a server's name.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity, Verify
from kvferry_server.adapters.nixl_file_store import FileObjectStore
from kvferry_server.adapters.nixl_object_store import S3ObjectStore
from kvferry_server.adapters.s3_credentials import Resolved
from kvferry_server.adapters.s3_inspect import S3Inspector
from kvferry_server.adapters.s3_preflight import S3Preflight
from kvferry_server.adapters.s3_rotation import KeySource
from kvferry_server.adapters.s3_types import Credentials, S3Settings
from kvferry_server.core.types import JobKind, Presence, TransferStatus
from tests.support.s3_servers import S3Server, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvferry_server.core.ports import ObjectStore

GUARD_SECONDS = 60.0
STORE, LOAD = JobKind.STORE, JobKind.LOAD
OK = TransferStatus.OK


class Pending:
    """One transfer under way: counts its `done` calls and keeps the slot's bytes at the first."""

    def __init__(self, store: ObjectStore, kind: JobKind, name: str, buffer: memoryview) -> None:
        self.buffer = buffer
        self.calls: list[TransferStatus] = []
        self.at_done = b""
        self.done_at = 0.0
        self._ended = threading.Event()
        store.transfer(kind, name, buffer, self._done)

    def _done(self, status: TransferStatus) -> None:
        self.done_at = time.monotonic()
        self.at_done = bytes(self.buffer)
        self.calls.append(status)
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> TransferStatus:
        """The status; AssertionError if it takes longer than the guard."""
        assert self._ended.wait(GUARD_SECONDS), "the transfer never ended"
        return self.calls[0]


def transfer(store: ObjectStore, kind: JobKind, name: str, buffer: memoryview) -> TransferStatus:
    """One transfer, tried again while the store says UNAVAILABLE, as the engine does."""
    for attempt in range(6):
        status = Pending(store, kind, name, buffer).wait()
        if status is not TransferStatus.UNAVAILABLE:
            break
        time.sleep(0.05 * 2**attempt)
    return status


def store_bytes(store: ObjectStore, name: str, data: bytes) -> TransferStatus:
    """Store a copy of `data`."""
    return transfer(store, STORE, name, memoryview(bytearray(data)))


def load_bytes(store: ObjectStore, name: str, size: int) -> tuple[TransferStatus, bytes]:
    """Load into a slot of random bytes; the status and what is in the slot then."""
    slot = bytearray(secrets.token_bytes(size))
    status = transfer(store, LOAD, name, memoryview(slot))
    return status, bytes(slot)


def probe(store: ObjectStore, names: Sequence[str]) -> Sequence[Presence] | None:
    """Ask, and again while some answer is not known, as the client does."""
    for attempt in range(6):
        answers = probe_once(store, names)
        if answers is not None and Presence.UNKNOWN not in answers:
            break
        time.sleep(0.05 * 2**attempt)
    return answers


def probe_once(store: ObjectStore, names: Sequence[str]) -> Sequence[Presence] | None:
    """Ask once and wait."""
    answers: list[Sequence[Presence] | None] = []
    ended = threading.Event()

    def done(answer: Sequence[Presence] | None) -> None:
        answers.append(answer)
        ended.set()

    store.probe(names, done)
    assert ended.wait(GUARD_SECONDS), "the probe never ended"
    assert len(answers) == 1
    return answers[0]


class StoreSubject(ABC):
    """A store under test. Each `open` is like another daemon: a catalog that knows nothing."""

    keeps_data = True
    """Objects survive `unplug` followed by `plug`."""

    @abstractmethod
    def make(self, verify: Verify = "when-known") -> ObjectStore:
        """A store before its preflight; the caller closes it."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write an object behind the store's back."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Read an object behind the store's back."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object behind the store's back."""

    @abstractmethod
    def unplug(self) -> None:
        """Take the storage away."""

    @abstractmethod
    def plug(self) -> None:
        """Bring it back."""

    @contextlib.contextmanager
    def opened(self, verify: Verify = "when-known") -> Iterator[ObjectStore]:
        """A store that passed its preflight."""
        store = self.make(verify)
        try:
            report = store.preflight()
            assert report.ready, report
            yield store
        finally:
            store.close()


class FileSubject(StoreSubject):
    """The file store in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "store"
        self._away = directory / "away"

    def make(self, verify: Verify = "when-known") -> ObjectStore:
        return FileObjectStore(self._root, integrity=Integrity(ChecksumCatalog(), verify))

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def delete(self, name: str) -> None:
        (self._root / name).unlink()

    def unplug(self) -> None:
        self._root.rename(self._away)

    def plug(self) -> None:
        self._away.rename(self._root)


class S3Subject(StoreSubject):
    """The S3 store on a server of `tests.support`.

    Args:
        server: running, with its bucket.
    """

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.keeps_data = server.keeps_data
        self.settings = S3Settings(server.bucket, "some/prefix", server.endpoint_url)
        self._client = server.client()

    def make(self, verify: Verify = "when-known") -> ObjectStore:
        keys = Credentials(self.server.access_key, self.server.secret_key)
        return make_s3_store(self.settings, keys, verify)

    def put(self, name: str, data: bytes) -> None:
        key = self.settings.object_key(name)
        self._client.put_object(Bucket=self.server.bucket, Key=key, Body=data)

    def get(self, name: str) -> bytes:
        key = self.settings.object_key(name)
        with contextlib.closing(
            self._client.get_object(Bucket=self.server.bucket, Key=key)["Body"]
        ) as body:
            return bytes(body.read())

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self.server.bucket, Key=self.settings.object_key(name))

    def unplug(self) -> None:
        self.server.kill()

    def plug(self) -> None:
        self.server.start()

    def close(self) -> None:
        """Close the way behind the store's back."""
        self._client.close()


def make_s3_store(
    settings: S3Settings,
    keys: Credentials | Callable[[], Credentials],
    verify: Verify = "when-known",
    wait_seconds: float = 10.0,
) -> S3ObjectStore:
    """The S3 store with the daemon's own preflight and inspector, and given keys."""

    def resolve() -> Resolved:
        return Resolved(keys() if callable(keys) else keys, "the test")

    return S3ObjectStore(
        settings,
        preflight=lambda round_trip: S3Preflight(settings, round_trip, resolve).run(),
        inquiry=lambda dialect, credentials: S3Inspector(settings, dialect, credentials),
        integrity=Integrity(ChecksumCatalog(), verify),
        keys=KeySource(lambda: resolve().credentials, wait_seconds=wait_seconds),
    )


@contextlib.contextmanager
def subject_named(name: str) -> Iterator[StoreSubject]:
    """`file`, or the S3 store on the server of that name."""
    if name == "file":
        directory = Path(tempfile.mkdtemp(prefix="kvferry-files-"))
        try:
            yield FileSubject(directory)
        finally:
            shutil.rmtree(directory)
        return
    with started(name) as server:
        subject = S3Subject(server)
        try:
            yield subject
        finally:
            subject.close()
