"""The contract of `core.ports.ObjectStore`: one suite for every store.

Use: derive a test class and say which stores it runs on.

    from tests.stores.contract import StoreContract, subject  # noqa: F401 - a fixture

    @pytest.mark.parametrize("subject", ["file", "moto"], indirect=True)
    class TestContract(StoreContract): ...
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kvferry_server.core.types import JobKind, Presence, TransferStatus

from .subjects import (
    GUARD_SECONDS,
    LOAD,
    OK,
    STORE,
    Pending,
    StoreSubject,
    load_bytes,
    probe,
    probe_once,
    store_bytes,
    subject_named,
    transfer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvferry_server.core.ports import ObjectStore

CHUNK = 64 << 10
PRESENT, ABSENT = Presence.PRESENT, Presence.ABSENT


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Iterator[StoreSubject]:
    """The store under test, by its name."""
    with subject_named(request.param) as found:
        yield found


def new_name() -> str:
    """An object name that nobody used, of the usual shape."""
    digest = secrets.token_hex(16)
    return f"model_0123abcd_r0/{digest[:3]}/{digest[3:5]}_g0/{digest}.bin"


class StoreContract:
    """What every object store does."""

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, subject) -> Iterator[ObjectStore]:
        """One open store for the tests that need no fresh one."""
        with subject.opened() as opened:
            yield opened

    @pytest.mark.parametrize("size", [1, 2, 7, 4096, 65_537, (1 << 20) + 13])
    @pytest.mark.parametrize("offset", [0, 3])
    def test_round_trip_of_any_size_and_alignment(self, store, subject, size, offset):
        region = bytearray(secrets.token_bytes(size + 64))
        slot = memoryview(region)[offset : offset + size]
        wanted, name = bytes(slot), new_name()
        assert transfer(store, STORE, name, slot) is OK
        assert subject.get(name) == wanted
        slot[:] = secrets.token_bytes(size)
        around = bytes(region[:offset]) + bytes(region[offset + size :])
        assert transfer(store, LOAD, name, slot) is OK
        assert bytes(slot) == wanted
        assert bytes(region[:offset]) + bytes(region[offset + size :]) == around

    def test_what_one_daemon_stores_another_loads(self, subject):
        data, name = secrets.token_bytes(CHUNK), new_name()
        with subject.opened() as store:
            assert store_bytes(store, name, data) is OK
        with subject.opened() as other:
            assert load_bytes(other, name, CHUNK) == (OK, data)
            assert load_bytes(other, name, CHUNK) == (OK, data)

    def test_overwrite(self, store):
        name = new_name()
        for _ in range(3):
            data = secrets.token_bytes(CHUNK)
            assert store_bytes(store, name, data) is OK
            assert load_bytes(store, name, CHUNK) == (OK, data)

    def test_missing_object(self, store):
        assert load_bytes(store, new_name(), CHUNK)[0] is TransferStatus.MISSING

    def test_object_removed_after_it_was_stored(self, store, subject):
        data, name = secrets.token_bytes(CHUNK), new_name()
        assert store_bytes(store, name, data) is OK
        subject.delete(name)
        assert load_bytes(store, name, CHUNK)[0] is TransferStatus.MISSING
        assert probe(store, [name]) == [ABSENT]

    @pytest.mark.parametrize("length", [0, 1, CHUNK // 2, CHUNK - 1])
    def test_D03_short_object_whatever_the_slot_held(self, store, subject, length):
        whole, name = secrets.token_bytes(CHUNK), new_name()
        subject.put(name, whole[:length])
        for before in (whole, bytes(CHUNK), b"\xff" * CHUNK, secrets.token_bytes(CHUNK)):
            slot = bytearray(before)
            status = transfer(store, LOAD, name, memoryview(slot))
            assert status is TransferStatus.WRONG_SIZE

    @pytest.mark.parametrize("extra", [1, CHUNK])
    def test_D03_over_long_object(self, store, subject, extra):
        name = new_name()
        subject.put(name, secrets.token_bytes(CHUNK + extra))
        assert load_bytes(store, name, CHUNK)[0] is TransferStatus.WRONG_SIZE

    def test_object_cut_after_it_was_stored(self, store, subject):
        data, name = secrets.token_bytes(CHUNK), new_name()
        assert store_bytes(store, name, data) is OK
        subject.put(name, data[: CHUNK // 2])
        slot = bytearray(data)
        assert transfer(store, LOAD, name, memoryview(slot)) is TransferStatus.WRONG_SIZE

    def test_slot_size_other_than_what_was_stored(self, store):
        data, name = secrets.token_bytes(CHUNK), new_name()
        assert store_bytes(store, name, data) is OK
        assert load_bytes(store, name, CHUNK // 2)[0] is TransferStatus.WRONG_SIZE
        assert load_bytes(store, name, CHUNK * 2)[0] is TransferStatus.WRONG_SIZE
        assert load_bytes(store, name, CHUNK) == (OK, data)

    @pytest.mark.parametrize("place", [0, CHUNK // 2, CHUNK - 1])
    def test_corrupt_object(self, store, subject, place):
        data, name = secrets.token_bytes(CHUNK), new_name()
        damaged = bytearray(data)
        damaged[place] ^= 1
        assert store_bytes(store, name, data) is OK
        subject.put(name, bytes(damaged))
        assert load_bytes(store, name, CHUNK)[0] is TransferStatus.CORRUPT
        assert store_bytes(store, name, data) is OK
        assert load_bytes(store, name, CHUNK) == (OK, data)

    def test_require_refuses_what_it_has_no_checksum_of(self, subject):
        data, name = secrets.token_bytes(CHUNK), new_name()
        with subject.opened("require") as store:
            subject.put(name, data)
            before = secrets.token_bytes(CHUNK)
            slot = bytearray(before)
            assert transfer(store, LOAD, name, memoryview(slot)) is TransferStatus.CORRUPT
            assert bytes(slot) == before
            assert store_bytes(store, name, data) is OK
            assert load_bytes(store, name, CHUNK) == (OK, data)

    def test_off_loads_other_bytes_but_never_another_size(self, subject):
        name, other = new_name(), bytes(CHUNK)
        with subject.opened("off") as store:
            assert store_bytes(store, name, secrets.token_bytes(CHUNK)) is OK
            subject.put(name, other)
            assert load_bytes(store, name, CHUNK) == (OK, other)
            subject.put(name, other[:-1])
            assert load_bytes(store, name, CHUNK)[0] is TransferStatus.WRONG_SIZE

    def test_probe(self, store, subject):
        names = [new_name() for _ in range(21)]
        assert probe(store, names) == [ABSENT] * 21
        for name in names[::2]:
            subject.put(name, b"x")
        assert probe(store, names) == [PRESENT, ABSENT] * 10 + [PRESENT]
        assert probe(store, names[:1]) == [PRESENT]
        assert list(probe(store, []) or ()) == []

    def test_64_transfers_at_once_end_once_each(self, store):
        count = 64
        names = [new_name() for _ in range(count)]
        region = bytearray(secrets.token_bytes(count * CHUNK))
        wanted = bytes(region)
        slots = [memoryview(region)[i * CHUNK : (i + 1) * CHUNK] for i in range(count)]
        ends = self._all_at_once(store, STORE, names, slots)
        region[:] = secrets.token_bytes(len(region))
        ends += self._all_at_once(store, LOAD, names, slots)
        assert bytes(region) == wanted
        time.sleep(0.2)
        assert all(len(each.calls) == 1 for each in ends)

    def _all_at_once(self, store, kind, names, slots) -> list[Pending]:
        """Every transfer at once, and again those that the store had no room for."""
        pending = [Pending(store, kind, *each) for each in zip(names, slots, strict=True)]
        for each, name in zip(pending, names, strict=True):
            assert each.wait() in (OK, TransferStatus.UNAVAILABLE)
            if each.wait() is not OK:
                assert transfer(store, kind, name, each.buffer) is OK
        return pending

    def test_one_missing_among_eight(self, store, subject):
        names = [new_name() for _ in range(8)]
        data = [secrets.token_bytes(CHUNK) for _ in names]
        for name, each in list(zip(names, data, strict=True))[1:]:
            subject.put(name, each)
        pending = [Pending(store, LOAD, name, memoryview(bytearray(CHUNK))) for name in names]
        statuses = [each.wait() for each in pending]
        time.sleep(0.3)
        assert statuses[0] is TransferStatus.MISSING
        for each, wanted in zip(pending[1:], data[1:], strict=True):
            assert each.wait() in (OK, TransferStatus.UNAVAILABLE)
            assert each.wait() is not OK or each.at_done == wanted
        assert all(bytes(each.buffer) == each.at_done for each in pending)

    def test_nothing_touches_the_slot_after_done(self, store, subject):
        name = new_name()
        subject.put(name, secrets.token_bytes(CHUNK // 2))
        pending = [
            Pending(store, LOAD, target, memoryview(bytearray(CHUNK)))
            for target in (name, new_name())
        ]
        stored = Pending(store, STORE, new_name(), memoryview(bytearray(CHUNK)))
        for each in (*pending, stored):
            each.wait()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert all(bytes(each.buffer) == each.at_done for each in pending)
            time.sleep(0.01)

    def test_a_stored_slot_may_change_as_soon_as_it_is_done(self, store, subject):
        names = [new_name() for _ in range(4)]
        wanted = [secrets.token_bytes(CHUNK) for _ in names]
        slots = [bytearray(each) for each in wanted]
        ends: dict[str, TransferStatus] = {}
        ended = threading.Event()

        def start(store, name: str, slot: bytearray) -> None:
            def done(status: TransferStatus) -> None:
                slot[:] = bytes(CHUNK)
                ends[name] = status
                if len(ends) == len(names):
                    ended.set()

            store.transfer(STORE, name, memoryview(slot), done)

        for name, slot in zip(names, slots, strict=True):
            start(store, name, slot)
        assert ended.wait(GUARD_SECONDS)
        for name, each in zip(names, wanted, strict=True):
            if ends[name] is OK:
                assert subject.get(name) == each

    @pytest.mark.parametrize("kind", list(JobKind))
    @pytest.mark.parametrize("exists", [True, False])
    def test_the_region_can_be_unmapped_in_done(self, store, subject, kind, exists):
        region = mmap.mmap(-1, CHUNK)
        name = new_name()
        errors: list[BaseException] = []
        ended = threading.Event()

        def done(_: TransferStatus) -> None:
            time.sleep(0.05)  # until `transfer` has returned to this test
            try:
                region.close()
            except BufferError as error:
                errors.append(error)
            ended.set()

        if exists:
            subject.put(name, bytes(CHUNK))
        store.transfer(kind, name, memoryview(region), done)
        assert ended.wait(GUARD_SECONDS)
        assert not errors

    def test_before_the_first_preflight_nothing_is_tried(self, subject):
        store = subject.make()
        try:
            assert load_once(store, new_name()) is TransferStatus.UNAVAILABLE
            assert probe_once(store, [new_name()]) is None
        finally:
            store.close()

    def test_preflight_of_a_live_store(self, store):
        names = [new_name() for _ in range(8)]
        pending = [Pending(store, STORE, name, memoryview(bytearray(CHUNK))) for name in names]
        assert store.preflight().ready
        assert all(each.wait() in (OK, TransferStatus.UNAVAILABLE) for each in pending)
        assert store_bytes(store, names[0], bytes(CHUNK)) is OK

    def test_close_waits_for_what_runs(self, subject):
        store = subject.make()
        assert store.preflight().ready
        pending = [
            Pending(store, STORE, new_name(), memoryview(bytearray(1 << 20))) for _ in range(8)
        ]
        store.close()
        assert [len(each.calls) for each in pending] == [1] * 8
        assert load_once(store, new_name()) is TransferStatus.UNAVAILABLE
        assert probe_once(store, [new_name()]) is None

    def test_descriptors_and_threads_stay_flat(self, subject):
        names = [new_name() for _ in range(4)]

        def use(store) -> None:
            for name in names:
                store_bytes(store, name, bytes(CHUNK))
                load_bytes(store, name, CHUNK)
                load_bytes(store, new_name(), CHUNK)
            probe(store, names)

        with subject.opened() as store:
            for _ in range(3):
                use(store)
            before = footprint()
            for _ in range(15):
                use(store)
            after = footprint()
        # Sockets depend on how many requests met: the SDK keeps up to 25 per agent open.
        assert after.sockets <= before.sockets + 40
        assert after.files <= before.files + 2
        assert after.threads <= before.threads + 3

    def test_closed_stores_leave_nothing(self, subject):
        for _ in range(2):
            with subject.opened() as store:
                store_bytes(store, new_name(), bytes(CHUNK))
        before = footprint()
        for _ in range(5):
            with subject.opened() as store:
                store_bytes(store, new_name(), bytes(CHUNK))
        after = footprint()
        assert after.files <= before.files + 2
        assert after.sockets <= before.sockets + 2
        assert after.threads <= before.threads + 1

    def test_L03_unreachable_then_back(self, subject):
        data, name = secrets.token_bytes(CHUNK), new_name()
        with subject.opened() as store:
            assert store_bytes(store, name, data) is OK
            subject.unplug()
            try:
                began = time.monotonic()
                pending = [
                    Pending(store, kind, each, memoryview(bytearray(CHUNK)))
                    for kind in (LOAD, STORE)
                    for each in [name, *(new_name() for _ in range(9))]
                ]
                assert {each.wait() for each in pending} == {TransferStatus.UNAVAILABLE}
                assert probe_once(store, [name, new_name()]) is None
                assert time.monotonic() - began < 20
            finally:
                subject.plug()
            if subject.keeps_data:
                assert load_bytes(store, name, CHUNK) == (OK, data)
            assert store_bytes(store, name, data) is OK
            assert load_bytes(store, name, CHUNK) == (OK, data)
            assert probe(store, [name, new_name()]) == [PRESENT, ABSENT]


def load_once(store, name: str) -> TransferStatus:
    """One load, not repeated."""
    return Pending(store, LOAD, name, memoryview(bytearray(CHUNK))).wait()


class Footprint(NamedTuple):
    """What this process holds, native threads included."""

    files: int
    sockets: int
    threads: int


def footprint() -> Footprint:
    """Descriptors and threads now."""
    gc.collect()
    sockets = files = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            # The SDK keeps an eventfd beside the socket of each of its connections.
            if str(each.readlink()).startswith(("socket:", "anon_inode:[eventfd]")):
                sockets += 1
            else:
                files += 1
    return Footprint(files, sockets, len(list(Path("/proc/self/task").iterdir())))
