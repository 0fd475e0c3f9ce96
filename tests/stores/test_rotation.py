"""Keys that change, expire or are refused while chunks move, on a server that counts each try."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kvferry_server.adapters.s3_types import Credentials, S3Settings
from kvferry_server.core.types import Presence, TransferStatus
from tests.support.fault_server import Fault, FaultServer

from .contract import CHUNK, new_name
from .subjects import (
    LOAD,
    OK,
    STORE,
    Pending,
    load_bytes,
    make_s3_store,
    probe_once,
    store_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvferry_server.adapters.nixl_object_store import S3ObjectStore

PREFIX = "p"
CODES = [("InvalidAccessKeyId", 403), ("SignatureDoesNotMatch", 403), ("ExpiredToken", 400)]


class Keys:
    """What the environment gives, and the only key that the server accepts."""

    def __init__(self, server: FaultServer) -> None:
        self.server = server
        self.given = "key-0"
        self.resolved = 0
        self.expires_at: float | None = None
        self._rule = 0

    def __call__(self) -> Credentials:
        self.resolved += 1
        return Credentials(self.given, "secret", expires_at=self.expires_at)

    def accept(self, key: str, code: str = "InvalidAccessKeyId", status: int = 403) -> None:
        """From now on the server refuses every other key."""
        rule = self.server.add(Fault(access_key=key, status=status, code=code))
        if self._rule:
            self.server.remove(self._rule)
        self._rule = rule


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def keys(server: FaultServer) -> Keys:
    return Keys(server)


@contextlib.contextmanager
def opened(keys: Keys, wait_seconds: float = 10.0) -> Iterator[S3ObjectStore]:
    server = keys.server
    settings = S3Settings(server.bucket, PREFIX, server.endpoint_url)
    store = make_s3_store(settings, keys, wait_seconds=wait_seconds)
    try:
        assert store.preflight().ready
        server.reset()
        yield store
    finally:
        store.close()


def tries(server: FaultServer, *methods: str) -> collections.Counter[tuple[str, str, str]]:
    """How often each key tried each object, transfers only."""
    found = collections.Counter[tuple[str, str, str]]()
    for request in server.requests():
        if request.method in methods and "kvferry-probe" not in request.key:
            signer = request.headers["authorization"].split("Credential=")[1].split("/")[0]
            found[signer, request.method, request.key] += 1
    return found


@pytest.mark.parametrize(("code", "status"), CODES)
def test_chunks_refused_for_their_keys_go_on_with_the_next(server, keys, code, status):
    with opened(keys) as store:
        keys.accept("key-1", code, status)
        slots = [memoryview(bytearray([number]) * CHUNK) for number in range(30)]
        stores = [Pending(store, STORE, f"c{number}", slot) for number, slot in enumerate(slots)]
        time.sleep(0.5)
        assert not any(each.ended for each in stores)
        keys.given = "key-1"
        assert [each.wait() for each in stores] == [OK] * 30
        assert all(server.get(f"{PREFIX}/c{n}") == bytes(slots[n]) for n in range(30))
        counted = tries(server, "PUT", "GET")
        assert max(counted.values()) == 1
        assert {signer for signer, _, _ in counted} == {"key-0", "key-1"}


def test_loads_and_lookups_go_on_too(keys):
    with opened(keys) as store:
        for number in range(8):
            assert store_bytes(store, f"c{number}", bytes([number]) * CHUNK) is OK
        keys.accept("key-1")
        keys.given = "key-1"
        names = [f"c{number}" for number in range(10)]
        assert probe_once(store, names) == [Presence.PRESENT] * 8 + [Presence.ABSENT] * 2
        for number in range(8):
            assert load_bytes(store, f"c{number}", CHUNK) == (OK, bytes([number]) * CHUNK)


def test_C04_many_refusals_cost_one_renewal_at_a_time(keys):
    """16 parallel stores all get ExpiredToken: the provider is asked once, not 16 times."""
    with opened(keys) as store:
        keys.accept("key-1", "ExpiredToken", 400)
        keys.given = "key-1"
        running, most, lock = 0, 0, threading.Lock()
        resolve = keys.__call__

        def counted() -> Credentials:
            nonlocal running, most
            with lock:
                running, most = running + 1, max(most, running + 1)
            time.sleep(0.3)
            with lock:
                running -= 1
            return resolve()

        before = keys.resolved
        store._keys = type(store._keys)(counted)
        slots = [memoryview(bytearray(CHUNK)) for _ in range(16)]
        pending = [Pending(store, STORE, new_name(), slot) for slot in slots]
        assert [each.wait() for each in pending] == [OK] * 16
        assert most == 1
        assert keys.resolved - before <= 2


def test_keys_that_nobody_replaces_end_as_denied_and_cost_no_more_requests(server, keys):
    with opened(keys, wait_seconds=0.5) as store:
        keys.accept("key-1")
        assert store_bytes(store, "first", bytes(CHUNK)) is TransferStatus.DENIED
        server.reset()
        began = time.monotonic()
        for number in range(20):
            assert store_bytes(store, f"c{number}", bytes(CHUNK)) is TransferStatus.DENIED
        assert probe_once(store, ["a", "b"]) == [Presence.UNKNOWN] * 2
        assert time.monotonic() - began < 5
        assert not tries(server, "PUT")
        keys.accept("key-0")
        end = time.monotonic() + 20
        while store_bytes(store, "again", bytes(CHUNK)) is not OK:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_missing_right_is_no_dead_key(server, keys):
    with opened(keys) as store:
        before = keys.resolved
        server.add(Fault(method="PUT", status=403, code="AccessDenied"))
        server.add(Fault(method="HEAD", status=403))
        assert store_bytes(store, "a", bytes(CHUNK)) is TransferStatus.DENIED
        assert keys.resolved == before


def test_new_keys_are_used_only_once_the_server_accepts_them(server, keys):
    with opened(keys) as store:
        keys.accept("key-0")
        keys.given = "key-1"
        store.refresh_credentials()
        time.sleep(0.5)
        for number in range(5):
            assert store_bytes(store, f"c{number}", bytes(CHUNK)) is OK
        assert {signer for signer, _, _ in tries(server, "PUT")} == {"key-0"}
        keys.accept("key-1")
        for number in range(5):
            assert store_bytes(store, f"d{number}", bytes(CHUNK)) is OK
        assert max(tries(server, "PUT").values()) == 1


def test_keys_are_renewed_before_they_expire(server, keys):
    keys.expires_at = time.time() + 3
    with opened(keys) as store:
        keys.given, keys.expires_at = "key-1", time.time() + 3600
        end = time.monotonic() + 20
        while keys.resolved < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.3)
        assert store_bytes(store, "a", bytes(CHUNK)) is OK
        assert {signer for signer, _, _ in tries(server, "PUT")} == {"key-1"}
        assert keys.resolved == 2


def test_a_transfer_under_way_ends_with_its_own_keys(server, keys):
    with opened(keys) as store:
        assert store_bytes(store, "big", bytes(CHUNK)) is OK
        server.add(Fault(method="GET", key="*big", slow=2.0))
        slot = memoryview(bytearray(CHUNK))
        pending = Pending(store, LOAD, "big", slot)
        time.sleep(0.3)
        keys.given = "key-1"
        store.refresh_credentials()
        assert pending.wait() is OK
        assert max(tries(server, "GET").values()) == 1


def test_close_gives_up_what_waits_for_keys(keys):
    with opened(keys, wait_seconds=60.0) as store:
        keys.accept("key-1")
        pending = [Pending(store, STORE, new_name(), memoryview(bytearray(9))) for _ in range(4)]
        time.sleep(0.5)
    assert all(each.wait() is not OK for each in pending)
    assert [len(each.calls) for each in pending] == [1] * 4
