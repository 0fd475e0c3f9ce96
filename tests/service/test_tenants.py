"""Whose objects are whose: by what the kernel says of a peer, never by what it says itself."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import admin_pb2, lease_pb2, offload_pb2, offload_pb2_grpc, types_pb2
from kvferry_server.core.errors import PermissionDenied
from kvferry_server.service import lease
from kvferry_server.service.peers import Peer
from kvferry_server.service.tenants import Tenants

from .harness import (
    GUARD_SECONDS,
    SYSTEM_PYTHON,
    Client,
    Region,
    World,
    as_another_user,
    attach_request,
    frame,
    running,
)

KEY = b"k" * 32 + bytes(4)
TENANTS = Tenants({12345: "team-a", 12346: "team-b"}, {20001: "team-c", 20002: "team-d"})
STORED, LOADED = types_pb2.CHUNK_OUTCOME_STORED, types_pb2.CHUNK_OUTCOME_LOADED
MISSING = types_pb2.CHUNK_OUTCOME_MISSING
PRESENT, ABSENT = types_pb2.PRESENCE_PRESENT, types_pb2.PRESENCE_ABSENT


@pytest.mark.parametrize(
    ("uid", "gids", "tenant"),
    [
        (12345, {1}, "team-a"),
        (12345, {20001}, "team-a"),
        (7, {7, 20001}, "team-c"),
        (7, {20001, 20002}, ""),
        (7, {7}, ""),
        (0, {0}, ""),
    ],
)
def test_a_uid_wins_and_groups_must_agree(uid, gids, tenant):
    peer = Peer(uid, frozenset(gids))
    if tenant:
        assert TENANTS.of(peer) == tenant
        return
    with pytest.raises(PermissionDenied, match=r"tenants\.uids"):
        TENANTS.of(peer)


def test_without_tenants_everybody_shares_one_space():
    assert Tenants().of(Peer(1, frozenset())) == ""
    assert Tenants().of(None) == ""
    assert Tenants().space("", "model") == "model"


def attach_as(world: World, monkeypatch: pytest.MonkeyPatch, uid: int) -> Client:
    monkeypatch.setattr(lease, "read_peer", lambda _connection: Peer(uid, frozenset({uid})))
    return world.attach()


def test_a_tenant_sees_and_overwrites_its_own_objects_only(socket_dir: Path, monkeypatch):
    with running(socket_dir, tenants=TENANTS) as world:
        one, other = (attach_as(world, monkeypatch, uid) for uid in (12345, 12346))
        data = one.region.fill(0, 0x61)
        one.store(1, [KEY], [0])
        assert one.outcomes(1) == [STORED]
        assert other.lookup([KEY]) == [ABSENT]
        other.load(1, [KEY], [0])
        assert other.outcomes(1) == [MISSING]
        other.region.fill(0, 0x62)
        other.store(2, [KEY], [0])
        assert other.outcomes(2) == [STORED]
        assert sorted(name.split("/")[0] for name in world.store.objects) == ["team-a", "team-b"]
        assert one.lookup([KEY]) == [PRESENT]
        one.load(2, [KEY], [3])
        assert one.outcomes(2) == [LOADED]
        assert one.region.read(3) == data


def test_a_client_cannot_name_its_tenant(socket_dir: Path, monkeypatch):
    with running(socket_dir, tenants=TENANTS) as world:
        monkeypatch.setattr(lease, "read_peer", lambda _connection: Peer(12345, frozenset()))
        region = Region.make()
        for name in ("../team-b", "team-b/model", "/team-b", ".."):
            request = attach_request(namespace=name)
            reply = world.try_attach(request, [region.descriptor])
            assert reply.error.reason == "BAD_NAMESPACE"
        region.close()


def test_an_attach_by_name_has_no_tenant(socket_dir: Path):
    with running(socket_dir, tenants=TENANTS, debug_attach_by_name=True) as world:
        stub = offload_pb2_grpc.OffloadServiceStub(world.channel())
        with pytest.raises(grpc.RpcError, match=r"use lease\.sock") as caught:
            stub.AttachRegion(offload_pb2.AttachRegionRequest(), timeout=GUARD_SECONDS)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


STAY = """
import array, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
rights = array.array("i", [int(sys.argv[2])])
connection.sendmsg([bytes.fromhex(sys.argv[3])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
print(connection.recv(65536)[4:].hex(), flush=True)
sys.stdin.read()
"""


@contextmanager
def user_attached(world: World, uid: int):
    """The reply that a process of another user gets; it stays until the end."""
    region = Region.make()
    words = [world.path("lease.sock"), str(region.descriptor), frame(attach_request()).hex()]
    process = subprocess.Popen(
        [SYSTEM_PYTHON, "-c", STAY, *words],
        pass_fds=[region.descriptor],
        user=uid,
        group=uid,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield lease_pb2.LeaseReply.FromString(bytes.fromhex(process.stdout.readline()))
        process.stdin.close()
    region.close()


@as_another_user
def test_real_users_get_their_own_tenant_and_others_none(socket_dir: Path):
    socket_dir.parent.chmod(0o755)
    with running(socket_dir, socket_mode=0o666, tenants=TENANTS) as world:
        socket_dir.chmod(0o755)
        with user_attached(world, 12345), user_attached(world, 12346):
            sessions = world.admin().ListSessions(admin_pb2.ListSessionsRequest()).sessions
            spaces = sorted(each.namespace for each in sessions)
            assert spaces == ["team-a/model", "team-b/model"]
        with user_attached(world, 12347) as reply:
            assert reply.error.reason == "PEER_NOT_ALLOWED"
        reply = world.try_attach(attach_request(), [])
        assert reply.error.reason == "NO_TENANT"
