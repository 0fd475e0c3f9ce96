"""The S3 store against a server that misbehaves: what real servers won't do on command."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvferry_server.adapters import nixl_prober
from kvferry_server.adapters.nixl_driver import move_and_wait
from kvferry_server.adapters.nixl_generation import backend_params
from kvferry_server.adapters.nixl_library import NixlAgent, live_handles
from kvferry_server.adapters.nixl_steps import Move
from kvferry_server.adapters.s3_types import Credentials, Dialect, S3Settings
from kvferry_server.core.types import Presence, TransferStatus
from tests.support.fault_server import Fault, FaultServer, full_backlog

from .contract import CHUNK, footprint, load_once, new_name
from .subjects import (
    GUARD_SECONDS,
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
KEYS = Credentials("kvferrytest", "kvferry-test-secret")
MISSING, UNAVAILABLE = TransferStatus.MISSING, TransferStatus.UNAVAILABLE
PRESENT, ABSENT, UNKNOWN = Presence.PRESENT, Presence.ABSENT, Presence.UNKNOWN


@pytest.fixture(scope="module")
def running_server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture
def server(running_server: FaultServer) -> Iterator[FaultServer]:
    yield running_server
    running_server.clear()
    running_server.reset()


@pytest.fixture
def store(server: FaultServer) -> Iterator[S3ObjectStore]:
    with opened(server) as store:
        server.reset()
        yield store


@contextlib.contextmanager
def opened(server: FaultServer) -> Iterator[S3ObjectStore]:
    store = make_s3_store(S3Settings(server.bucket, PREFIX, server.endpoint_url), KEYS)
    try:
        report = store.preflight()
        assert report.ready, report
        yield store
    finally:
        store.close()


def put(server: FaultServer, name: str, data: bytes) -> None:
    server.put(f"{PREFIX}/{name}", data)


def slots(count: int) -> list[memoryview]:
    return [memoryview(bytearray(secrets.token_bytes(CHUNK))) for _ in range(count)]


def wait_for_requests(server: FaultServer, method: str, count: int) -> None:
    end = time.monotonic() + GUARD_SECONDS
    while len(server.requests(method)) < count:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_J08_one_missing_among_eight_with_slow_siblings(server, store):
    """Eight loads, the first missing: it ends at once, the others arrive whole, then silence."""
    names, data = [new_name() for _ in range(8)], [secrets.token_bytes(CHUNK) for _ in range(8)]
    for name, each in list(zip(names, data, strict=True))[1:]:
        put(server, name, each)
        server.add(Fault(method="GET", key=f"{PREFIX}/{name}", slow=1.0))
    pending = [Pending(store, LOAD, *each) for each in zip(names, slots(8), strict=True)]
    assert pending[0].wait() is MISSING
    assert not any(each.ended for each in pending[1:])
    assert [each.wait() for each in pending[1:]] == [OK] * 7
    assert [each.at_done for each in pending[1:]] == data[1:]
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert all(bytes(each.buffer) == each.at_done for each in pending)
        time.sleep(0.02)
    assert [len(each.calls) for each in pending] == [1] * 8


def test_L05_one_erring_key_among_32_changes_no_other(server, store):
    names = [new_name() for _ in range(32)]
    for name in names[::2]:
        put(server, name, b"x")
    server.add(Fault(method="HEAD", delay=0.1))
    server.add(Fault(method="HEAD", key=f"{PREFIX}/{names[7]}", delay=0.1, status=500))
    wanted = [PRESENT, ABSENT] * 16
    wanted[7] = UNKNOWN
    seconds = []
    for _ in range(3):  # a busy machine may spoil one
        began = time.monotonic()
        assert probe_once(store, names) == wanted
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 1.0


def test_a_call_whose_every_key_hangs_is_not_drawn_out(server, store, monkeypatch):
    """The store answers for a made-up key, so it is not given up as unreachable."""
    monkeypatch.setattr(nixl_prober, "_LONGEST_CALL_SECONDS", 1.0)
    names = [new_name() for _ in range(16)]
    for name in names:
        server.add(Fault(method="HEAD", key=f"{PREFIX}/{name}", hang="start"))
    assert set(probe_once(store, names)) == {UNKNOWN}
    asked = [key for each in server.requests("HEAD") if (key := each.key).startswith(PREFIX)]
    assert sum(key.removeprefix(f"{PREFIX}/") in names for key in asked) <= len(names)


def test_S04_a_key_that_answers_403_is_unknown_and_the_others_right(server, store):
    names = [new_name() for _ in range(10)]
    for name in names[:5]:
        put(server, name, b"x")
    server.add(Fault(method="HEAD", status=403))
    for name in names[:5]:
        server.add(Fault(method="HEAD", key=f"{PREFIX}/{name}"))
    assert probe_once(store, names) == [PRESENT] * 5 + [UNKNOWN] * 5


def test_a_lookup_never_waits_behind_transfers(server, store):
    names = [new_name() for _ in range(store.max_active_chunks)]
    rule = server.add(Fault(method="PUT", hang="start"))
    pending = [Pending(store, STORE, *each) for each in zip(names, slots(len(names)), strict=True)]
    wait_for_requests(server, "PUT", len(names))
    assert probe_once(store, [new_name() for _ in range(32)]) == [ABSENT] * 32
    assert not any(each.ended for each in pending)
    server.remove(rule)
    assert [each.wait() for each in pending] == [OK] * len(names)


def test_every_active_chunk_really_runs(server, store):
    names = [new_name() for _ in range(store.max_active_chunks)]
    server.add(Fault(method="PUT", delay=1.0))
    pending = [Pending(store, STORE, *each) for each in zip(names, slots(len(names)), strict=True)]
    assert [each.wait() for each in pending] == [OK] * len(names)
    assert server.counters().max_in_flight == store.max_active_chunks == 50


def test_J03_a_get_that_never_answers_ends_and_the_slot_is_quiet(server, store):
    name = new_name()
    put(server, name, bytes(CHUNK))
    rule = server.add(Fault(method="GET", hang="start"))
    pending = Pending(store, LOAD, name, slots(1)[0])
    assert pending.wait() is UNAVAILABLE
    server.remove(rule)
    time.sleep(0.5)
    assert bytes(pending.buffer) == pending.at_done
    assert len(pending.calls) == 1


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_J06_an_error_answer_is_never_a_load(server, store, status):
    name = new_name()
    put(server, name, bytes(CHUNK))
    server.add(Fault(method="GET", status=status, code="Whatever"))
    assert load_bytes(store, name, CHUNK)[0] is UNAVAILABLE
    assert len(server.requests("GET")) == 6  # ours; the SDK tries each only once
    server.clear()
    assert load_bytes(store, name, CHUNK) == (OK, bytes(CHUNK))


@pytest.mark.parametrize("status", [400, 500, 503])
def test_J07_a_refused_put_is_no_store(server, store, status):
    name = new_name()
    server.add(Fault(method="PUT", status=status))
    assert store_bytes(store, name, bytes(CHUNK)) is UNAVAILABLE
    assert probe_once(store, [name]) == [ABSENT]
    assert load_once(store, name) is MISSING


def test_one_failure_then_success(server, store):
    """The engine's next try works: nothing of the error body stays in the slot."""
    name, data = new_name(), secrets.token_bytes(CHUNK)
    put(server, name, data)
    server.add(Fault(method="GET", status=503, code="SlowDown", times=1))
    slot = slots(1)[0]
    assert Pending(store, LOAD, name, slot).wait() is UNAVAILABLE
    assert Pending(store, LOAD, name, slot).wait() is OK
    assert bytes(slot) == data


def test_a_forbidden_object_is_denied(server, store):
    name = new_name()
    put(server, name, bytes(CHUNK))
    server.add(Fault(key=f"{PREFIX}/{name}", status=403, code="AccessDenied"))
    assert load_once(store, name) is TransferStatus.DENIED
    assert store_bytes(store, name, bytes(CHUNK)) is TransferStatus.DENIED


def test_D02_a_body_cut_off_early_is_no_load(server, store):
    name = new_name()
    put(server, name, bytes(CHUNK))
    server.add(Fault(method="GET", drop="body", times=1))
    assert load_once(store, name) is UNAVAILABLE
    assert load_once(store, name) is OK


def test_D03_a_206_with_half_the_bytes_is_no_load(server, store):
    name = new_name()
    put(server, name, bytes(CHUNK))
    server.add(Fault(method="GET", size=CHUNK // 2))
    assert load_once(store, name) is TransferStatus.WRONG_SIZE


def test_known_checksum_needs_no_size_request(server, store):
    name, data = new_name(), secrets.token_bytes(CHUNK)
    assert store_bytes(store, name, data) is OK
    assert load_bytes(store, name, CHUNK) == (OK, data)
    assert not server.requests("HEAD")


def test_unknown_object_costs_one_size_request(server, store):
    name, data = new_name(), secrets.token_bytes(CHUNK)
    put(server, name, data)
    for _ in range(3):
        assert load_bytes(store, name, CHUNK) == (OK, data)
    assert len(server.requests("HEAD")) == 1


def test_an_unreachable_store_costs_a_lookup_no_more_than_one_failing_query(server, store):
    names = [new_name() for _ in range(8)]
    server.add(Fault(method="HEAD", status=503))
    assert probe_once(store, names) is None
    assert len(server.requests("HEAD")) == len(names) + 1
    server.clear()
    time.sleep(1.1)
    assert probe_once(store, names) == [ABSENT] * 8


@pytest.mark.parametrize("kind", [STORE, LOAD])
def test_S09_a_connection_that_is_not_accepted_ends_in_3_seconds(kind):
    with full_backlog() as port:
        settings = S3Settings("bucket", PREFIX, f"http://127.0.0.1:{port}")
        agent = NixlAgent("OBJ", backend_params(settings, Dialect(), KEYS))
        began = time.monotonic()
        assert not move_and_wait(agent, Move(kind, slots(1)[0], "key"))
        assert time.monotonic() - began < 3
        agent.close()


def test_S10_connections_that_the_server_closes_leave_nothing():
    with FaultServer(close_each=True) as server, opened(server) as store:
        name = new_name()
        for _ in range(3):
            assert store_bytes(store, name, bytes(CHUNK)) is OK
        before = footprint()
        for _ in range(250):
            assert store_bytes(store, name, bytes(CHUNK)) is OK
            assert load_bytes(store, name, CHUNK)[0] is OK
        after = footprint()
        assert after.files <= before.files + 2
        assert after.sockets <= before.sockets + 5


def test_handles_are_counted_until_they_are_released(server, store):
    """Of those that end well, those that fail, and those that still run."""
    assert live_handles() == 0
    names = [new_name() for _ in range(4)]
    server.add(Fault(method="PUT", key=f"{PREFIX}/{names[0]}", status=403))
    server.add(Fault(method="PUT", key=f"{PREFIX}/{names[1]}", delay=1.5))
    pending = [Pending(store, STORE, *each) for each in zip(names, slots(4), strict=True)]
    for each in (pending[0], *pending[2:]):
        each.wait()
    assert (live_handles(), pending[1].ended) == (1, False)
    assert pending[1].wait() is OK
    assert live_handles() == 0


def test_N02_close_waits_for_a_slow_put(server):
    store = make_s3_store(S3Settings(server.bucket, PREFIX, server.endpoint_url), KEYS)
    assert store.preflight().ready
    server.add(Fault(method="PUT", delay=3.0))
    pending = [Pending(store, STORE, new_name(), slot) for slot in slots(8)]
    time.sleep(0.2)
    store.close()
    assert [each.calls for each in pending] == [[OK]] * 8


def test_K05_keys_and_addressing(server, store):
    """S07 too: the bucket is in the path, not in the host name."""
    name = new_name()
    assert store_bytes(store, name, bytes(CHUNK)) is OK
    request = server.requests("PUT")[0]
    assert (request.bucket, request.key) == (server.bucket, f"{PREFIX}/{name}")
    assert request.headers["host"] == f"127.0.0.1:{server.port}"


def test_H01_no_newer_checksum_headers_on_a_foreign_endpoint():
    with FaultServer(refuse_checksums=True) as server, opened(server) as store:
        name, data = new_name(), secrets.token_bytes(CHUNK)
        assert store_bytes(store, name, data) is OK
        assert server.get(f"{PREFIX}/{name}") == data


def test_new_credentials_make_a_new_generation_and_the_old_one_finishes(server):
    keys = [Credentials("first", "s")]
    settings = S3Settings(server.bucket, PREFIX, server.endpoint_url)
    store = make_s3_store(settings, lambda: keys[0])
    try:
        assert store.preflight().ready
        server.reset()
        rule = server.add(Fault(method="PUT", key="*slow", hang="start"))
        slow = Pending(store, STORE, "slow", slots(1)[0])
        wait_for_requests(server, "PUT", 1)
        keys[0] = Credentials("second", "s", "token")
        assert store.preflight().ready
        assert not slow.ended
        assert store_bytes(store, "fast", bytes(CHUNK)) is OK
        assert not slow.ended
        server.remove(rule)
        assert slow.wait() is OK
        signed = {each.key: each.headers for each in server.requests("PUT")}
        assert "Credential=first/" in signed[f"{PREFIX}/slow"]["authorization"]
        assert "Credential=second/" in signed[f"{PREFIX}/fast"]["authorization"]
        assert signed[f"{PREFIX}/fast"]["x-amz-security-token"] == "token"
    finally:
        store.close()


def test_generations_leave_nothing_behind(server):
    numbers = iter(range(100))
    settings = S3Settings(server.bucket, PREFIX, server.endpoint_url)
    store = make_s3_store(settings, lambda: Credentials(f"key{next(numbers)}", "s"))
    try:
        for _ in range(3):
            assert store.preflight().ready
        time.sleep(0.5)
        before = footprint()
        for _ in range(5):
            assert store.preflight().ready
            assert store_bytes(store, new_name(), bytes(CHUNK)) is OK
        time.sleep(0.5)
        after = footprint()
        assert after.files <= before.files + 2
        assert after.sockets <= before.sockets + 5
        assert after.threads <= before.threads + 5
    finally:
        store.close()


def test_a_failing_preflight_leaves_a_working_store_alone(server, store):
    rule = server.add(Fault(key="", status=403, code="AccessDenied"))
    other = server.add(Fault(method="PUT", key="*preflight*", status=403, code="AccessDenied"))
    assert not store.preflight().ready
    assert store_bytes(store, new_name(), bytes(CHUNK)) is OK
    server.remove(rule)
    server.remove(other)


def test_an_idle_store_uses_no_processor_time(store):
    del store
    time.sleep(0.3)
    before = os.times()
    time.sleep(2.0)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.1


def test_secrets_show_in_no_text(store, server):
    texts = [repr(store), str(vars(store)), repr(KEYS), Path("/proc/self/cmdline").read_text()]
    server.add(Fault(method="PUT", status=403, code="AccessDenied"))
    texts += [repr(store.preflight())]
    known = KEYS.secret_key.reveal(), KEYS.access_key.reveal()
    assert not any(secret in each for each in texts for secret in known)
