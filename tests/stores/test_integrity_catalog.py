"""The checksum catalog: which knowledge is newest, and its file through death and damage."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvferry_server.adapters import integrity_file
from kvferry_server.adapters.integrity import ChecksumCatalog, Expectation, Integrity
from kvferry_server.adapters.integrity_file import CatalogFile, Stored
from kvferry_server.adapters.nixl_steps import Ask
from kvferry_server.core.types import TransferStatus
from tests.support.processes import clean_environment

from .test_integrity import OK, SIZE, ScriptedMover

CORRUPT = TransferStatus.CORRUPT


def run(procedure):
    """Run a procedure whose questions are answered at once."""
    try:
        while True:
            step = next(procedure)
            assert isinstance(step, Ask)
            step.question()
    except StopIteration as ended:
        return ended.value


@contextlib.contextmanager
def opened(path: Path, max_entries: int = 10_000):
    file = CatalogFile(path, max_entries)
    try:
        yield file
    finally:
        file.close()


@contextlib.contextmanager
def catalog_on(path: Path):
    catalog = ChecksumCatalog(file=CatalogFile(path))
    try:
        yield catalog
    finally:
        catalog.close()


def known(catalog: ChecksumCatalog, name: str = "name"):
    found = run(catalog.find(name))
    return found and (found.length, found.crc)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog" / "a.sqlite3"


def slot(byte: int) -> memoryview:
    return memoryview(bytearray([byte]) * SIZE)


def test_what_was_stored_is_known_after_a_restart(path):
    with catalog_on(path) as catalog:
        catalog.put("name", Expectation(SIZE, 7))
        catalog.put("gone", Expectation(SIZE, 8))
        catalog.drop("gone")
        catalog.learn("length", Expectation(SIZE, None))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with catalog_on(path) as catalog:
        assert len(catalog) == 0
        assert known(catalog) == (SIZE, 7)
        assert known(catalog, "gone") is None
        assert known(catalog, "length") is None


def test_a_restart_orders_its_entries_after_the_old_ones(path):
    with catalog_on(path) as catalog:
        for number in range(100):
            catalog.put(str(number), Expectation(SIZE, number))
    with catalog_on(path) as catalog:
        old = run(catalog.find("50"))
        catalog.put("50", Expectation(SIZE, 1_000))
        catalog.forget("50", old)
        assert catalog.get("50") is not None
        assert known(catalog, "50") == (SIZE, 1_000)
    with catalog_on(path) as catalog:
        assert known(catalog, "50") == (SIZE, 1_000)
        catalog.forget("50", run(catalog.find("50")))
        assert known(catalog, "50") is None
    with catalog_on(path) as catalog:
        assert known(catalog, "50") is None


def test_a_write_that_waits_is_seen_by_reads(path, monkeypatch):
    monkeypatch.setattr(integrity_file, "_BATCH_SECONDS", 60.0)
    with opened(path) as file:
        file.write(b"a", Stored(SIZE, 1, 5))
        assert file.read(b"a") == (SIZE, 1, 5)
        file.remove(b"a", 4)
        assert file.read(b"a") == (SIZE, 1, 5)
        file.remove(b"a", 6)
        file.remove(b"a", 5)
        assert file.read(b"a") is None
    with opened(path) as file:
        assert file.read(b"a") is None


@pytest.mark.parametrize("ended", [OK, TransferStatus.MISSING])
@pytest.mark.parametrize(("with_file", "restarted"), [(False, False), (True, False), (True, True)])
def test_a_failed_load_keeps_the_entry_of_a_store_that_finished_meanwhile(
    path, with_file, restarted, ended
):
    """Even if both stored the same bytes, so that the entries differ in nothing else."""
    catalog = ChecksumCatalog(file=CatalogFile(path) if with_file else None)
    rules = Integrity(catalog)
    mover = ScriptedMover(None)
    assert run(rules.store(mover, "name", slot(1))) is OK
    if restarted:
        catalog.close()
        catalog = ChecksumCatalog(file=CatalogFile(path))
        rules = Integrity(catalog)

    class Overtaken(ScriptedMover):
        def read(self, name, buffer):
            yield from ()
            buffer[:] = slot(9)
            assert run(rules.store(mover, name, slot(1))) is OK
            return ended

    assert run(rules.load(Overtaken(None), "name", slot(0))) is (CORRUPT if ended is OK else ended)
    require = Integrity(catalog, "require")
    assert run(require.load(mover, "name", slot(0))) is OK
    catalog.close()


def test_a_learnt_length_never_replaces_a_checksum():
    """The object was not known when the load began; a store finished before the load did."""
    catalog = ChecksumCatalog()
    rules = Integrity(catalog)
    mover = ScriptedMover(None)

    class Overtaken(ScriptedMover):
        def read(self, name, buffer):
            yield from super().read(name, buffer)
            assert run(rules.store(mover, name, slot(1))) is OK
            return OK

    assert run(rules.load(Overtaken(bytes(slot(2))), "name", slot(0))) is OK
    assert catalog.get("name").crc is not None


@pytest.mark.parametrize("policy", ["require", "when-known", "off"])
def test_policies_after_a_restart(path, policy):
    mover = ScriptedMover(None)
    with catalog_on(path) as catalog:
        assert run(Integrity(catalog).store(mover, "name", slot(1))) is OK
    with catalog_on(path) as catalog:
        rules = Integrity(catalog, policy)
        assert run(rules.load(mover, "name", slot(0))) is OK
        unknown = CORRUPT if policy == "require" else OK
        assert run(rules.load(mover, "stored by another daemon", slot(0))) is unknown
        mover.content = bytes(slot(2))
        assert run(rules.load(mover, "name", slot(0))) is (OK if policy == "off" else CORRUPT)


def test_a_store_without_checksums_removes_the_old_one_for_good(path):
    """`off`, then `when-known` again: the first run's checksum is not the third run's truth."""
    mover = ScriptedMover(None)
    for policy, byte in (("when-known", 1), ("off", 2)):
        with catalog_on(path) as catalog:
            assert run(Integrity(catalog, policy).store(mover, "name", slot(byte))) is OK
    with catalog_on(path) as catalog:
        assert run(Integrity(catalog).load(mover, "name", slot(0))) is OK


def test_the_oldest_entries_go(path):
    with opened(path, 1_000) as file:
        for number in range(5_000):
            file.write(number.to_bytes(16), Stored(SIZE, number, number + 1))
    with contextlib.closing(sqlite3.connect(path)) as database:
        [(count, oldest, newest)] = database.execute(
            "SELECT count(*), min(stamp), max(stamp) FROM objects"
        )
    assert 900 <= count <= 1_000
    assert newest == 5_000
    assert oldest == newest - count + 1


WRITER = """
import sys
import time
from pathlib import Path
from kvferry_server.adapters import integrity_file
from kvferry_server.adapters.integrity_file import CatalogFile, Stored
integrity_file._BATCH_SECONDS = 0.01
file = CatalogFile(Path(sys.argv[1]), 5_000)
stamp = file.last_stamp
while True:
    stamp += 1
    number = stamp % 20_000
    if stamp % 7:
        file.write(number.to_bytes(16), Stored(number, number ^ 0x5A5A, stamp))
    else:
        file.remove(number.to_bytes(16), stamp)
    if stamp % 1_000 == 0:
        while len(file._pending) > 500:  # so that most is written, and never all
            time.sleep(0.001)
        print(stamp, flush=True)
"""


def test_killed_in_the_middle_of_writes(path):
    """Time and again: what is found after is never wrong, and the file is never lost."""
    newest = 0
    for round_number in range(6):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=clean_environment() | {"PYTHONPATH": "server"}
        ) as writer:
            for _ in range(10 + round_number):
                assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        with opened(path, 5_000) as file:
            assert file.last_stamp > newest
            newest = file.last_stamp
            found = [file.read(number.to_bytes(16)) for number in range(20_000)]
        entries = [(n, entry) for n, entry in enumerate(found) if entry is not None]
        assert len(entries) > 1_000
        assert all(entry[:2] == (n, n ^ 0x5A5A) for n, entry in entries)
    assert not path.with_name(path.name + ".damaged").exists()


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _garbage_at_start(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xa5" * 4096)


def _garbage_inside(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _garbage_log(path: Path) -> None:
    path.with_name(path.name + "-wal").write_bytes(os.urandom(100_000))


def _other_tables(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE objects (name TEXT)")
        database.execute("PRAGMA user_version = 1")
        database.commit()


def _other_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
        database.commit()


def _other_types(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE objects SET length = 'x', crc = x'00'")
        database.commit()


DAMAGES = [
    _truncate,
    _garbage_at_start,
    _garbage_inside,
    _empty,
    _garbage_log,
    _other_tables,
    _other_version,
    _other_types,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_loss_of_knowledge_and_no_more(path, damage, monkeypatch):
    monkeypatch.setattr(integrity_file, "_BATCH_SECONDS", 0.01)
    with catalog_on(path) as catalog:
        for number in range(2_000):
            catalog.put(str(number), Expectation(SIZE, number))
    damage(path)
    with catalog_on(path) as catalog:
        for number in range(2_000):
            assert known(catalog, str(number)) in {None, (SIZE, number)}
        catalog.put("new", Expectation(SIZE, 5))
    with catalog_on(path) as catalog:
        assert known(catalog, "new") == (SIZE, 5)


def test_damaged_while_open(path, monkeypatch, caplog):
    """Found by a read or a write, set aside, begun anew, with few lines in the log."""
    monkeypatch.setattr(integrity_file, "_BATCH_SECONDS", 0.01)
    with catalog_on(path) as catalog:
        for number in range(20_000):
            catalog.put(str(number), Expectation(SIZE, number))
    with catalog_on(path) as catalog:
        _garbage_inside(path)
        for number in range(20_000):
            assert known(catalog, str(number)) in {None, (SIZE, number)}
        catalog.put("new", Expectation(SIZE, 5))
    assert path.with_name(path.name + ".damaged").exists()
    assert 1 <= len([each for each in caplog.records if each.levelname == "WARNING"]) <= 2
    with catalog_on(path) as catalog:
        assert known(catalog, "new") == (SIZE, 5)


def test_a_disk_that_is_full_and_then_is_not(path, monkeypatch, caplog):
    monkeypatch.setattr(integrity_file, "_BATCH_SECONDS", 0.01)
    monkeypatch.setattr(integrity_file, "_RETRY_SECONDS", 0.05)
    caplog.set_level("INFO")
    with catalog_on(path) as catalog:
        connection = catalog._file._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        for number in range(5_000):
            catalog.put(str(number), Expectation(SIZE, number))
        _until(lambda: "disk is full" in caplog.text)
        time.sleep(0.3)
        assert caplog.text.count("disk is full") == 1
        assert known(catalog, "1") == (SIZE, 1)
        connection.execute("PRAGMA max_page_count = 1000000")
        _until(lambda: "written again" in caplog.text)
    with catalog_on(path) as catalog:
        assert known(catalog, "4999") == (SIZE, 4_999)


def test_what_waits_for_a_disk_is_bounded(path, monkeypatch):
    monkeypatch.setattr(integrity_file, "_BATCH_SECONDS", 60.0)
    monkeypatch.setattr(integrity_file, "_MAX_PENDING", 100)
    with opened(path) as file:
        for number in range(1_000):
            file.write(number.to_bytes(16), Stored(SIZE, number, number + 1))
        assert len(file._pending) == 100
        assert file.read((999).to_bytes(16)) is not None


def test_two_daemons_never_share_a_file(path):
    with opened(path), pytest.raises(OSError, match="locked"):
        CatalogFile(path)


def test_a_place_where_nothing_can_be_made():
    with pytest.raises(OSError, match="kvferry"):
        CatalogFile(Path("/proc/kvferry/a.sqlite3"))


def _until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
