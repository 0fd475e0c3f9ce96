"""Keys that change, expire or are refused while chunks move, on a server that counts each try."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from kvferry_server.adapters.s3_credentials import resolve_credentials
from kvferry_server.adapters.s3_rotation import Renewed, Rotation, next_renewal
from kvferry_server.adapters.s3_types import Credentials, S3Settings
from kvferry_server.core.types import Presence, TransferStatus
from tests.cli.harness import wait_for
from tests.support.fault_server import Fault, FaultServer
from tests.support.token_service import token_service

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
        return self.resolve()

    def resolve(self) -> Credentials:
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
        wait_for(lambda: store._chosen[1].access_key.reveal() == "key-1")
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


def test_S06_a_skewed_clock_is_signed_anew_and_told_apart(server, keys, caplog):
    with opened(keys) as store:
        server.add(Fault(method="PUT", times=1, status=403, code="RequestTimeTooSkewed"))
        slot = memoryview(bytearray(CHUNK))
        assert Pending(store, STORE, "a", slot).wait() is TransferStatus.UNAVAILABLE
        time.sleep(1.1)
        assert Pending(store, STORE, "a", slot).wait() is OK
        first, second = [each.headers["x-amz-date"] for each in server.requests("PUT")]
        assert first < second
        before = keys.resolved
        server.add(Fault(status=403, code="RequestTimeTooSkewed"))
        assert Pending(store, STORE, "b", slot).wait() is TransferStatus.DENIED
        assert caplog.text.count("this machine's clock is off") == 1
        assert keys.resolved == before


def test_a_swapped_link_and_a_rewritten_file_are_noticed(tmp_path):
    renewals: list[float] = []
    file = tmp_path / "credentials"
    for number in ("..1", "..2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "credentials").write_text("the same length")
    (tmp_path / "..data").symlink_to("..1")
    file.symlink_to("..data/credentials")

    def renew() -> Renewed:
        renewals.append(time.monotonic())
        return Renewed(settled=True)

    rotation = Rotation(renew, lambda: [file, tmp_path / "absent"])
    rotation.watch(None)
    try:
        time.sleep(1.3)
        assert renewals == []
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        wait_for(lambda: len(renewals) == 1)
        (tmp_path / "..2" / "credentials").write_text("another length")
        wait_for(lambda: len(renewals) == 2)
        file.unlink()
        wait_for(lambda: len(renewals) == 3)
        time.sleep(1.3)
        assert len(renewals) == 3
    finally:
        rotation.close()


def test_a_renewal_that_fails_is_repeated_with_pauses(tmp_path):
    renewals: list[float] = []

    def renew() -> Renewed:
        renewals.append(time.monotonic())
        if len(renewals) == 1:
            raise RuntimeError("unexpected")
        return Renewed(settled=len(renewals) == 4)

    rotation = Rotation(renew, lambda: [tmp_path])
    rotation.watch(None)
    try:
        rotation.ask()
        wait_for(lambda: len(renewals) == 4)
        gaps = [later - earlier for earlier, later in itertools.pairwise(renewals)]
        assert gaps[0] < gaps[1] < gaps[2]
        time.sleep(0.5)
        assert len(renewals) == 4
    finally:
        rotation.close()


@pytest.mark.parametrize(
    ("left", "expected"),
    [(None, None), (3600, 3300), (361, 61), (300, 60), (60, 40), (3, 2), (0.5, 1), (-5, 1)],
)
def test_when_keys_are_renewed(left, expected):
    now = 1_000_000.0
    due = next_renewal(None if left is None else now + left, now)
    assert (due if due is None else due - now) == expected


def test_C02_short_lived_keys_are_renewed_with_the_token_of_the_time(server, keys, tmp_path):
    """Each renewal by web identity reads the token file anew."""
    token = tmp_path / "token"
    token.write_text("first")
    with token_service() as service, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in service.environment(str(token)).items():
            patch.setenv(name, value)
        service.keys = ("key-0", "s", "t")
        expiry = datetime.now(UTC) + timedelta(seconds=4)
        service.expiration = expiry.strftime("%Y-%m-%dT%H:%M:%SZ")
        keys.resolve = lambda: resolve_credentials().credentials
        with opened(keys) as store:
            token.write_text("second")
            service.keys = ("key-1", "s", "t")
            service.expiration = "2099-01-01T00:00:00Z"
            wait_for(lambda: len(service.tokens) == 2)
            wait_for(lambda: store._chosen[1].access_key.reveal() == "key-1")
            assert store_bytes(store, "a", bytes(CHUNK)) is OK
            assert {signer for signer, _, _ in tries(server, "PUT")} == {"key-1"}
        assert service.tokens == ["first", "second"]
