"""The integrity rules on their own: a scripted mover shows what each attempt sees and costs."""

from __future__ import annotations

import secrets
import tracemalloc
from dataclasses import dataclass, field

import pytest

from kvferry_server.adapters import integrity
from kvferry_server.adapters.integrity import ChecksumCatalog, Expectation, Integrity
from kvferry_server.adapters.stored_checksums import ObjectFacts, StoredChecksum
from kvferry_server.core.telemetry import SILENCE, Checked
from kvferry_server.core.types import TransferStatus

OK = TransferStatus.OK
SIZE = 64


@dataclass
class ScriptedMover:
    """An object in memory, moved at once; `readings`: the slot's last byte before each read."""

    content: bytes | None
    size_answer: int | None = SIZE
    exact_size: bool = False
    write_status: TransferStatus = OK
    readings: list[int] = field(default_factory=list)
    size_requests: int = 0
    kept: StoredChecksum | None = None

    def write(self, name, buffer):
        del name
        yield from ()
        if self.write_status is OK:
            self.content = bytes(buffer)
        return self.write_status

    def read(self, name, buffer):
        del name
        yield from ()
        self.readings.append(buffer[-1])
        if self.content is None:
            return TransferStatus.MISSING
        part = self.content[: len(buffer)]
        buffer[: len(part)] = part
        return OK

    def facts(self, name):
        del name
        yield from ()
        self.size_requests += 1
        if self.size_answer is None:
            return None
        return ObjectFacts(self.size_answer, self.kept)


def run(procedure) -> TransferStatus:
    with pytest.raises(StopIteration) as ended:
        next(procedure)
    return ended.value.value


def load(rules: Integrity, mover: ScriptedMover, before: bytes = b"") -> TransferStatus:
    slot = bytearray(before or secrets.token_bytes(SIZE))
    return run(rules.load(mover, "name", memoryview(slot)))


@pytest.mark.parametrize("last", range(0, 256, 5))
def test_a_whole_object_is_loaded_whatever_the_canary(last):
    mover = ScriptedMover(bytes(SIZE - 1) + bytes([last]))
    assert load(Integrity(ChecksumCatalog()), mover) is OK


def test_an_unlucky_canary_costs_one_more_read(monkeypatch):
    monkeypatch.setattr(integrity.secrets, "randbelow", lambda _: 7)
    mover = ScriptedMover(bytes(SIZE - 1) + b"\x07")
    assert load(Integrity(ChecksumCatalog()), mover) is OK
    assert len(mover.readings) == 2
    assert len(set(mover.readings)) == 2


def test_a_short_object_never_passes(monkeypatch):
    """Not even if the slot's old last byte, the object's and the canary are all the same."""
    monkeypatch.setattr(integrity.secrets, "randbelow", lambda _: 7)
    mover = ScriptedMover(b"\x07" * (SIZE - 1))
    before = b"\x07" * SIZE
    assert load(Integrity(ChecksumCatalog()), mover, before) is TransferStatus.WRONG_SIZE
    assert len(mover.readings) == 2


def test_canaries_differ_from_load_to_load():
    mover = ScriptedMover(bytes(SIZE))
    rules = Integrity(ChecksumCatalog())
    for _ in range(64):
        load(rules, mover)
    assert len(set(mover.readings)) > 10


def test_corrupt_is_corrupt_even_if_its_last_byte_is_the_canary(monkeypatch):
    monkeypatch.setattr(integrity.secrets, "randbelow", lambda _: 7)
    mover = ScriptedMover(None)
    rules = Integrity(ChecksumCatalog())
    slot = memoryview(bytearray(bytes(SIZE - 1) + b"\x07"))
    assert run(rules.store(mover, "name", slot)) is OK
    mover.content = b"\x01" * (SIZE - 1) + b"\x07"
    assert load(rules, mover) is TransferStatus.CORRUPT


def test_the_size_is_asked_once_and_only_when_unknown():
    mover = ScriptedMover(bytes(SIZE))
    rules = Integrity(ChecksumCatalog())
    assert load(rules, mover) is OK
    assert load(rules, mover) is OK
    assert mover.size_requests == 1


def test_a_size_that_cannot_be_found_out_is_worth_another_try():
    mover = ScriptedMover(bytes(SIZE), size_answer=None)
    rules = Integrity(ChecksumCatalog())
    assert load(rules, mover) is TransferStatus.UNAVAILABLE
    mover.size_answer = SIZE
    assert load(rules, mover) is OK


def test_a_failed_overwrite_keeps_the_checksum():
    """Or else damaged bytes would pass once somebody tried in vain to store the object anew."""
    mover = ScriptedMover(None)
    rules = Integrity(ChecksumCatalog())
    slot = memoryview(bytearray(SIZE))
    assert run(rules.store(mover, "name", slot)) is OK
    mover.content = b"\x01" * SIZE
    assert load(rules, mover) is TransferStatus.CORRUPT
    mover.write_status = TransferStatus.UNAVAILABLE
    assert run(rules.store(mover, "name", slot)) is TransferStatus.UNAVAILABLE
    assert load(rules, mover) is TransferStatus.CORRUPT


def test_what_a_failed_overwrite_left_of_other_bytes_is_a_miss():
    """The object may hold the new bytes after all: no load passes until it is stored anew."""
    mover = ScriptedMover(None)
    rules = Integrity(ChecksumCatalog())
    assert run(rules.store(mover, "name", memoryview(bytearray(SIZE)))) is OK
    mover.write_status, mover.content = TransferStatus.UNAVAILABLE, b"\x02" * SIZE
    new = memoryview(bytearray(mover.content))
    assert run(rules.store(mover, "name", new)) is TransferStatus.UNAVAILABLE
    assert load(rules, mover) is TransferStatus.CORRUPT
    mover.write_status = OK
    assert run(rules.store(mover, "name", new)) is OK
    assert load(rules, mover) is OK


def test_what_verification_came_to_is_counted(monkeypatch):
    """That the policy requires a checksum which is not known is no sign of damage."""
    seen: list[Checked] = []
    monkeypatch.setattr(SILENCE, "load_checked", seen.append)
    mover = ScriptedMover(bytes(SIZE))
    catalog = ChecksumCatalog()
    required, known = Integrity(catalog, "require"), Integrity(catalog)
    assert load(required, mover) is TransferStatus.CORRUPT
    assert load(known, mover) is OK
    assert load(required, mover) is TransferStatus.CORRUPT
    assert run(known.store(mover, "name", memoryview(bytearray(SIZE)))) is OK
    assert load(required, mover) is OK
    mover.content = b"\x01" * SIZE
    assert load(required, mover) is TransferStatus.CORRUPT
    mover.content = b""
    assert load(Integrity(ChecksumCatalog()), mover) is TransferStatus.WRONG_SIZE
    assert seen == [
        Checked.NOT_KNOWN,
        Checked.LENGTH_ONLY,
        Checked.NOT_KNOWN,
        Checked.VERIFIED,
        Checked.CORRUPT,
        Checked.WRONG_SIZE,
    ]


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"\x01" * SIZE, TransferStatus.CORRUPT), (b"", TransferStatus.WRONG_SIZE)],
)
def test_damaged_bytes_never_pass_later_for_want_of_knowledge(content, status):
    """Another engine may have asked for the object before it was found damaged."""
    mover = ScriptedMover(None)
    rules = Integrity(ChecksumCatalog())
    slot = memoryview(bytearray(SIZE))
    assert run(rules.store(mover, "name", slot)) is OK
    mover.content = content
    for _ in range(3):
        assert load(rules, mover) is status
    assert run(rules.store(mover, "name", slot)) is OK
    assert load(rules, mover) is OK


def test_a_missing_object_is_forgotten():
    mover = ScriptedMover(None)
    catalog = ChecksumCatalog()
    rules = Integrity(catalog)
    assert run(rules.store(mover, "name", memoryview(bytearray(SIZE)))) is OK
    mover.content = None
    assert load(rules, mover) is TransferStatus.MISSING
    assert catalog.get("name") is None


def test_a_length_that_was_only_learnt_is_forgotten_when_it_is_wrong():
    """Another daemon overwrote the object with the right length."""
    mover = ScriptedMover(bytes(SIZE))
    catalog = ChecksumCatalog()
    rules = Integrity(catalog)
    catalog.learn("name", Expectation(SIZE + 1, None))
    assert load(rules, mover) is TransferStatus.WRONG_SIZE
    assert load(rules, mover) is OK


def test_an_infrastructure_failure_keeps_the_entry():
    mover = ScriptedMover(None)
    catalog = ChecksumCatalog()
    rules = Integrity(catalog)
    assert run(rules.store(mover, "name", memoryview(bytearray(SIZE)))) is OK
    known = catalog.get("name")

    def unavailable(name, buffer):
        del name, buffer
        yield from ()
        return TransferStatus.UNAVAILABLE

    mover.read = unavailable
    assert load(rules, mover) is TransferStatus.UNAVAILABLE
    assert catalog.get("name") == known


def test_off_takes_no_checksum():
    mover = ScriptedMover(None)
    catalog = ChecksumCatalog()
    rules = Integrity(catalog, "off")
    assert run(rules.store(mover, "name", memoryview(bytearray(SIZE)))) is OK
    known = catalog.get("name")
    assert (known.length, known.crc) == (SIZE, None)
    mover.content = b"\x01" * SIZE
    assert load(rules, mover) is OK


def test_the_catalog_keeps_the_newest_within_its_memory():
    limit = 1 << 20
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        catalog = ChecksumCatalog(limit)
        for number in range(20_000):
            catalog.put(
                f"model_0123abcd_r0/abc/de_g0/{number:064x}.bin", Expectation(1 << 20, number)
            )
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used <= limit
    assert 1000 < len(catalog) < 20_000
    assert catalog.get(f"model_0123abcd_r0/abc/de_g0/{19_999:064x}.bin") is not None
    assert catalog.get(f"model_0123abcd_r0/abc/de_g0/{0:064x}.bin") is None
    catalog.get(f"model_0123abcd_r0/abc/de_g0/{19_000:064x}.bin")
