"""Who may attach."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import lease_pb2
from kvferry_server.core.errors import PermissionDenied
from kvferry_server.service.peers import Peer, PeerPolicy, read_peer

from .harness import SYSTEM_PYTHON, Region, as_another_user, attach_request, frame, running

OVERFLOW = 65_534


def allowed(peer: Peer, **changes) -> bool:
    settings = {"uids": {7}, "gids": {8}, "allow_overflow": False, "own_uid": 5, **changes}
    try:
        PeerPolicy(settings.pop("uids"), settings.pop("gids"), **settings).check(peer)
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize(
    ("uid", "gids", "expected"),
    [
        (5, {5}, True),
        (7, {1}, True),
        (6, {1, 8}, True),
        (6, {1}, False),
        (0, {0}, False),
        (OVERFLOW, {8}, False),
        (6, {OVERFLOW}, False),
    ],
)
def test_own_uid_listed_uids_and_members_of_listed_groups(uid: int, gids: set[int], expected):
    assert allowed(Peer(uid, frozenset(gids))) is expected


def test_the_overflow_uid_needs_its_own_switch():
    peer = Peer(OVERFLOW, frozenset({OVERFLOW}))
    assert not allowed(peer, uids={OVERFLOW}, gids={OVERFLOW})
    assert not allowed(peer, own_uid=OVERFLOW)
    assert allowed(peer, allow_overflow=True)
    assert not allowed(Peer(6, frozenset({OVERFLOW})), gids={OVERFLOW}, allow_overflow=True)


def test_the_kernel_tells_uid_and_groups():
    one, other = socket.socketpair()
    with one, other:
        peer = read_peer(one)
    assert peer == Peer(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))


CONNECT = """
import array, socket, sys
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(sys.argv[1])
except PermissionError:
    print("refused by the file system")
    raise SystemExit
rights = array.array("i", [int(sys.argv[2])])
connection.sendmsg([bytes.fromhex(sys.argv[3])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
sys.stdout.write(connection.recv(65536)[4:].hex())
"""


def attach_as(world, uid: int, gids: list[int]):
    """The reply that another user gets."""
    region = Region.make()
    words = [world.path("lease.sock"), str(region.descriptor), frame(attach_request()).hex()]
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", CONNECT, *words],
        pass_fds=[region.descriptor],
        user=uid,
        group=gids[0],
        extra_groups=gids[1:],
        capture_output=True,
        text=True,
        check=True,
    )
    region.close()
    if not all(c in "0123456789abcdef" for c in done.stdout):
        return done.stdout.strip()
    return lease_pb2.LeaseReply.FromString(bytes.fromhex(done.stdout))


@as_another_user
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_G03_group_members_attach_and_others_are_refused_whatever_the_umask(
    socket_dir: Path, umask: int
):
    socket_dir.parent.chmod(0o755)
    before = os.umask(umask)
    try:
        with running(socket_dir, socket_group="23456") as world:
            assert attach_as(world, 12345, [12345]) == "refused by the file system"
            assert attach_as(world, 12345, [12345, 23456]).HasField("attached")
            for name in ("kvferry.sock", "lease.sock"):
                status = (socket_dir / name).stat()
                assert (status.st_mode & 0o7777, status.st_gid) == (0o660, 23456)
            admin = (socket_dir / "admin.sock").stat()
            assert (admin.st_mode & 0o7777, admin.st_uid) == (0o600, os.geteuid())
            status = socket_dir.stat()
            assert (status.st_mode & 0o7777, status.st_gid) == (0o750, 23456)
    finally:
        os.umask(before)


@as_another_user
def test_a_peer_that_gets_through_the_directory_is_still_checked(socket_dir: Path):
    socket_dir.parent.chmod(0o755)
    with running(socket_dir, socket_mode=0o666, allowed_uids=frozenset({12345})) as world:
        socket_dir.chmod(0o755)
        assert attach_as(world, 12345, [1]).HasField("attached")
        error = attach_as(world, 12346, [1]).error
        assert error.code == grpc.StatusCode.PERMISSION_DENIED.value[0]
        assert error.reason == "PEER_NOT_ALLOWED"
        assert "uid 12346" in error.message
        assert attach_as(world, OVERFLOW, [1]).error.reason == "PEER_OVERFLOW_UID"
