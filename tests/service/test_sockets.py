"""The socket directory."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from kvferry_server.core.errors import ConfigError, FailedPrecondition
from kvferry_server.service.server import ServerSettings
from kvferry_server.service.sockets import SocketDirectory

from .harness import World, running, start


def prepare(path: Path, **settings) -> SocketDirectory:
    return SocketDirectory(ServerSettings(socket_dir=path, **settings))


def test_G02_a_stale_socket_is_replaced(socket_dir: Path):
    socket_dir.mkdir(mode=0o750)
    (socket_dir / "kvferry.lock").touch()
    for name in ("kvferry.sock", "lease.sock", "admin.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(socket_dir / name))
    with running(socket_dir) as world:
        world.attach()


@pytest.mark.parametrize("name", ["kvferry.sock", "lease.sock", "admin.sock"])
def test_G02_a_regular_file_at_the_path_is_refused_and_kept(socket_dir: Path, name: str):
    socket_dir.mkdir(mode=0o750)
    (socket_dir / "kvferry.lock").touch()
    (socket_dir / name).write_text("x")
    with pytest.raises(ConfigError, match=f"{name}.*not a socket"):
        start(socket_dir)
    assert (socket_dir / name).read_text() == "x"


def test_G09_a_path_over_107_bytes_is_refused_with_the_limit(socket_dir: Path):
    longest = socket_dir / ("d" * (107 - len(str(socket_dir / "kvferry.sock")) - 1))
    assert len(str(longest / "kvferry.sock")) == 107
    with running(longest) as world:
        world.attach()
    longer = longest.with_name(longest.name + "d")
    with pytest.raises(ConfigError, match="107") as refusal:
        prepare(longer)
    assert str(longer) in refusal.value.message
    assert "choose a shorter sockets.directory" in refusal.value.message
    assert not longer.exists()


def test_odd_characters_in_the_path(socket_dir: Path):
    with running(socket_dir.with_name("a%20b ?#é")) as world:
        world.attach()
        assert sorted(p.name for p in world.directory.iterdir()) == [
            "admin.sock",
            "kvferry.lock",
            "kvferry.sock",
            "lease.sock",
        ]


def test_a_second_daemon_on_the_directory_is_refused_and_touches_nothing(world: World):
    before = {p.name: p.lstat().st_ino for p in world.directory.iterdir()}
    with pytest.raises(FailedPrecondition, match=f"pid {os.getpid()}"):
        prepare(world.directory)
    assert {p.name: p.lstat().st_ino for p in world.directory.iterdir()} == before
    world.attach()


def test_O06_ownership_is_the_lock_not_the_process_id(socket_dir: Path):
    socket_dir.mkdir()
    (socket_dir / "kvferry.lock").write_text("1\n")
    with running(socket_dir) as world:
        assert (world.directory / "kvferry.lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_outlives_the_stop_and_its_file_is_kept(socket_dir: Path):
    with running(socket_dir):
        inode = (socket_dir / "kvferry.lock").stat().st_ino
    assert (socket_dir / "kvferry.lock").stat().st_ino == inode
    with pytest.raises(FailedPrecondition):
        prepare(socket_dir)


def test_an_own_empty_directory_is_closed_to_others(socket_dir: Path):
    socket_dir.mkdir()
    socket_dir.chmod(0o777)
    prepare(socket_dir)
    assert socket_dir.stat().st_mode & 0o7777 == 0o750


def test_a_directory_with_other_files_is_refused_and_kept_as_it_is(socket_dir: Path):
    socket_dir.mkdir(mode=0o755)
    (socket_dir / "other").touch()
    with pytest.raises(ConfigError, match="subdirectory"):
        prepare(socket_dir)
    assert socket_dir.stat().st_mode & 0o7777 == 0o755
    assert [p.name for p in socket_dir.iterdir()] == ["other"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a foreign directory")
def test_a_foreign_directory_is_refused_and_kept_as_it_is(socket_dir: Path):
    socket_dir.mkdir()
    socket_dir.chmod(0o777)
    os.chown(socket_dir, 12345, 12345)
    with pytest.raises(ConfigError, match=r"uid 12345.*subdirectory"):
        prepare(socket_dir)
    status = socket_dir.stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o777, 12345, 12345)
    assert list(socket_dir.iterdir()) == []


def test_what_is_no_directory_is_refused(socket_dir: Path):
    socket_dir.write_text("x")
    with pytest.raises(ConfigError, match="not a directory"):
        prepare(socket_dir)
    with pytest.raises(ConfigError, match="can't be created"):
        prepare(socket_dir / "below")


def test_unknown_group(socket_dir: Path):
    with pytest.raises(ConfigError, match="no group 'kvferry-absent'"):
        prepare(socket_dir, socket_group="kvferry-absent")


def test_only_own_sockets_are_removed(world: World):
    path = world.directory / "lease.sock"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
    world.stop()
    assert sorted(p.name for p in world.directory.iterdir()) == ["kvferry.lock", "lease.sock"]


@pytest.mark.parametrize("call", ["fchmod", "ftruncate"])
def test_a_full_or_read_only_disk_is_one_clear_refusal(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    def fails(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(ConfigError, match="Read-only file system"):
        prepare(socket_dir)


@pytest.mark.parametrize("name", ["kvferry.sock", "admin.sock", "lease.sock"])
def test_a_file_system_that_takes_no_socket_is_one_clear_refusal(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    directory = SocketDirectory(ServerSettings(socket_dir))
    refused = pytest.raises(ConfigError, match=f"can't hold {name}: its file system is full")
    with refused, directory.binding(name):
        raise RuntimeError("Failed to bind to address")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "chmod", fails)
    refused = pytest.raises(ConfigError, match=f"can't hold {name}: No space left on device")
    with refused, directory.binding(name):
        pass
