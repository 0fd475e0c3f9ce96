"""What only the file store does: names, temporary files, and what the file system refuses."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kvferry_server.adapters.file_store_staging import AREA, Staging, sweep
from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
from kvferry_server.adapters.nixl_file_store import FileObjectStore
from kvferry_server.core.errors import ConfigError
from kvferry_server.core.types import Presence, TransferStatus
from tests.support.processes import clean_environment

from .contract import CHUNK, load_once, new_name
from .subjects import LOAD, OK, STORE, FileSubject, Pending, load_bytes, probe_once, store_bytes

INTERNAL = TransferStatus.INTERNAL


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(tmp_path: Path):
    with FileSubject(tmp_path).opened() as store:
        yield store


def test_the_root_must_be_absolute():
    with pytest.raises(ConfigError, match="absolute") as caught:
        FileObjectStore(Path("relative"), integrity=Integrity(ChecksumCatalog()))
    assert caught.value.field == "store.url"


def test_url(store, root):
    assert store.url == f"file://{root}"


@pytest.mark.usefixtures("store")
def test_the_root_is_made_for_its_owner_only(root):
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/x", "", f"{AREA}/x", "a/..", "x\0y", "x" * 300]
)
def test_a_name_that_leads_elsewhere_is_refused(store, tmp_path, name):
    before = sorted(tmp_path.rglob("*"))
    assert store_bytes(store, name, bytes(CHUNK)) is INTERNAL
    assert load_once(store, name) is INTERNAL
    assert probe_once(store, [name]) == [Presence.UNKNOWN]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_symbolic_link_is_not_followed(store, root, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(secrets.token_bytes(CHUNK))
    (root / "link").symlink_to(outside)
    assert load_once(store, "link") is INTERNAL
    assert probe_once(store, ["link"]) == [Presence.ABSENT]
    before = outside.read_bytes()
    assert store_bytes(store, "link", bytes(CHUNK)) is OK
    assert outside.read_bytes() == before


def test_what_is_no_file_is_no_object(store, root):
    os.mkfifo(root / "fifo")
    (root / "folder").mkdir()
    assert load_once(store, "fifo") is TransferStatus.WRONG_SIZE
    assert load_once(store, "folder") is TransferStatus.WRONG_SIZE
    assert probe_once(store, ["fifo", "folder"]) == [Presence.ABSENT] * 2
    assert store_bytes(store, "folder", bytes(CHUNK)) is INTERNAL
    assert not list(root.rglob("*.part"))


def test_a_file_shows_only_when_complete(store, root):
    """While stores run, each file under an object's name is whole."""
    whole = b"\x07" * (1 << 20)
    seen = set()
    for number in range(20):
        name = f"a/{number}"
        pending = [Pending(store, STORE, name, memoryview(bytearray(whole))) for _ in range(4)]
        while not all(each.ended for each in pending):
            if (root / name).exists():
                seen.add((root / name).read_bytes() == whole)
    assert seen == {True}
    assert not list(root.rglob("*.part"))


def test_a_failed_overwrite_keeps_the_file(store, root):
    whole = b"\x07" * (1 << 20)
    assert store_bytes(store, "name", whole) is OK
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) - 1, hard))
    try:
        status = store_bytes(store, "name", bytes(len(whole)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status is not OK
    assert (root / "name").read_bytes() == whole


def test_a_failed_store_leaves_no_temporary_file_and_a_cause_in_the_log(store, root, caplog):
    (root / "file").write_bytes(b"")
    assert store_bytes(store, "file/below", bytes(CHUNK)) is INTERNAL
    assert not list(root.rglob("*.part"))
    [line] = caplog.messages
    assert line.startswith(f"can't store in {root}: ")
    assert line.endswith(": a file is in the way: name another directory in store.url")


def test_what_is_missing_makes_no_line(store, caplog):
    assert load_once(store, "no/such") is TransferStatus.MISSING
    assert caplog.messages == []


def test_stale_temporary_files_are_swept_and_nothing_else(root, tmp_path):
    dead = root / AREA / "kvferry-0123456789abcdef"
    dead.mkdir(parents=True)
    for name in ("1.part", "22.part", "keep.txt", "3.part.bak"):
        (dead / name).write_bytes(b"x")
    empty = root / AREA / "kvferry-fedcba9876543210"
    empty.mkdir()
    foreign = root / AREA / "somebody-else"
    foreign.mkdir()
    (foreign / "1.part").write_bytes(b"x")
    (root / "1.part").write_bytes(b"x")
    live = Staging(root)
    running = Path(live.new_path())
    running.write_bytes(b"x")
    target = tmp_path / "target"
    target.mkdir()
    (target / "1.part").write_bytes(b"x")
    (root / AREA / "kvferry-aaaaaaaaaaaaaaaa").symlink_to(target)

    with FileSubject(tmp_path).opened():
        pass

    assert sorted(path.name for path in dead.iterdir()) == ["3.part.bak", "keep.txt"]
    assert not empty.exists()
    kept = [foreign / "1.part", root / "1.part", running, target / "1.part"]
    assert all(path.exists() for path in kept)
    running.unlink()
    live.close()
    assert sweep(root) == 0


def test_a_closed_store_leaves_objects_only(tmp_path, root):
    with FileSubject(tmp_path).opened() as store:
        store_bytes(store, "a/b", bytes(CHUNK))
    assert [path for path in root.rglob("*") if path.is_file()] == [root / "a/b"]
    assert list((root / AREA).iterdir()) == []


def test_an_emptied_store_goes_on(store, root):
    store_bytes(store, "a/b", bytes(CHUNK))
    for path in root.iterdir():
        shutil.rmtree(path)
    assert store_bytes(store, "a/b", bytes(CHUNK)) is OK
    assert load_bytes(store, "a/b", CHUNK) == (OK, bytes(CHUNK))
    assert load_once(store, new_name()) is TransferStatus.MISSING


def test_a_tool_that_removes_empty_directories_makes_nothing_unreachable(store, root):
    """As `find -empty -delete` does, with which a directory of objects is kept small."""
    (root / AREA / "kvferry-of-nobody").mkdir()
    for path in (*(root / AREA).iterdir(), root / AREA):
        path.rmdir()
    assert probe_once(store, ["none"]) == [Presence.ABSENT]
    assert load_once(store, "none") is TransferStatus.MISSING


@pytest.mark.parametrize("how", ["a file", "gone", "another directory", "a loop"])
def test_a_root_that_is_not_what_it_was_is_unreachable(store, root, how):
    """An unmounted or broken root: nothing is absent, and every question gets an answer."""
    shutil.rmtree(root)
    if how == "a file":
        root.write_text("a file")
    elif how == "another directory":
        root.mkdir()
    elif how == "a loop":
        root.symlink_to(root)
    assert probe_once(store, ["name"]) is None
    assert load_once(store, "name") is TransferStatus.UNAVAILABLE


def test_a_preflight_that_can_not_work_says_why(tmp_path):
    (tmp_path / "store").write_text("a file")
    store = FileSubject(tmp_path).make()
    report = store.preflight()
    assert not report.ready
    assert str(tmp_path / "store") in report.problem
    assert report.problem.endswith(": a file is in the way: name another directory in store.url")
    assert "\n" not in report.problem
    assert [step.passed for step in report.steps] == [False]
    (tmp_path / "store").unlink()
    assert store.preflight().ready
    store.close()


REFUSED = """
    import pathlib, sys
    from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
    from kvferry_server.adapters.nixl_file_store import FileObjectStore
    from tests.stores.subjects import LOAD, STORE, Pending

    root = pathlib.Path(sys.argv[1])
    store = FileObjectStore(root, integrity=Integrity(ChecksumCatalog()))
    report = store.preflight()
    print(report.problem or "ready")
    for kind, name in ((STORE, "new/object"), (LOAD, "present"), (STORE, "locked/object")):
        print(Pending(store, kind, name, memoryview(bytearray(4 << 20))).wait().name)
    store.close()
"""


def run_refused(prefix: list[str], root: Path) -> list[str]:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(REFUSED), str(root)],
        cwd=Path(__file__).parents[2],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap makes a small file system")
def test_a_full_file_system_is_worth_another_try():
    box = ["bwrap", "--dev-bind", "/", "/", "--size", str(1 << 20), "--tmpfs", "/mnt"]
    root = Path("/mnt/store")
    assert run_refused(box, root) == ["ready", "UNAVAILABLE", "MISSING", "UNAVAILABLE"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root shows it best: it runs the store as nobody")
def test_what_the_mode_forbids_is_denied():
    root = Path("/var/tmp") / f"kvferry-{secrets.token_hex(8)}"
    root.mkdir()
    try:
        (root / "locked").mkdir(mode=0o700)
        (root / "present").write_bytes(bytes(4 << 20))
        (root / "present").chmod(0o600)
        os.chown(root, 65534, 65534)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        assert run_refused(nobody, root) == ["ready", "OK", "DENIED", "DENIED"]
        os.chown(root, 0, 0)
        problem, *ends = run_refused(nobody, root)
        assert "not readable and writable: change its owner or mode" in problem
        assert ends == ["UNAVAILABLE"] * 3
    finally:
        shutil.rmtree(root)


def test_more_transfers_than_threads_all_end(store):
    names = [new_name() for _ in range(40)]
    pending = [Pending(store, STORE, name, memoryview(bytearray(CHUNK))) for name in names]
    assert {each.wait() for each in pending} == {OK}
    pending = [Pending(store, LOAD, name, memoryview(bytearray(CHUNK))) for name in names]
    assert {each.wait() for each in pending} == {OK}
