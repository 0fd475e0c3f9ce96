"""lease.sock on a real daemon: refusals, bad peers, and what end-of-file means each way."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import admin_pb2, offload_pb2, types_pb2

from .harness import (
    GUARD_SECONDS,
    SLOT,
    Region,
    World,
    attach_request,
    frame,
    open_descriptors,
    receive_reply,
    running,
    send_frame,
    wait_for,
)

KEY = b"k" * 32 + b"\0\0\0\0"
STORES_AT_ONCE = 6
"""Of the fake store's eight; the engine keeps a quarter for loads."""
CANCELLED = types_pb2.CHUNK_OUTCOME_CANCELLED


def own_descriptors() -> int:
    return len(open_descriptors())


@pytest.fixture
def region():
    made = Region.make()
    yield made
    made.close()


def test_the_reply_holds_session_limits_and_boot_id(world: World):
    client = world.attach()
    response = client.response
    assert len(response.session.session_id) == 32
    assert len(response.session.token) == 32
    assert response.boot_id == world.daemon.boot_id
    assert response.limits.max_message_bytes == 16 << 20
    assert response.limits.max_wait.seconds == 30
    assert response.server_version == "0.1.0"


def test_received_descriptors_are_closed_and_nothing_is_inheritable(world: World):
    before = own_descriptors()
    client = world.attach()
    # The test's memfd, both ends of the connection and the channel come on top of the
    # mapper's two: its own duplicate and mmap's.
    inode = os.fstat(client.region.descriptor).st_ino
    held = [fd for fd in map(int, open_descriptors()) if _inode(fd) == inode]
    assert len(held) == 4
    assert [fd for fd in held if os.get_inheritable(fd)] == []
    assert [fd for fd in _sockets() if os.get_inheritable(fd)] == []
    assert own_descriptors() > before


def test_descriptors_are_close_on_exec_from_the_moment_they_arrive(world: World, region: Region):
    data = frame(attach_request())
    inode = os.fstat(region.descriptor).st_ino
    with world.connect() as connection:
        send_frame(connection, data[:6], [region.descriptor])

        def held() -> list[int]:
            return [fd for fd in map(int, open_descriptors()) if _inode(fd) == inode]

        wait_for(lambda: len(held()) == 3)
        assert [fd for fd in held() if os.get_inheritable(fd)] == []
        connection.sendall(data[6:])
        assert receive_reply(connection).HasField("attached")


def _inode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return -1


def _sockets() -> list[int]:
    found = []
    for name in open_descriptors():
        try:
            if str(Path(f"/proc/self/fd/{name}").readlink()).startswith("socket:"):
                found.append(int(name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"client_version": ""}, "client_version"),
        ({"client_version": "v" * 65}, "client_version"),
        ({"engine_id": ""}, "engine_id"),
        ({"engine_id": "é" * 65}, "engine_id"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": ".."}, "namespace"),
        ({"namespace": "a/b"}, "namespace"),
        ({"namespace": "n" * 201}, "namespace"),
        ({"vllm_namespace": "m"}, "vllm_namespace"),
        ({"vllm_namespace": "a/m_0123456789ab_r0"}, "vllm_namespace"),
        ({"slot_bytes": 0}, "slot_bytes"),
        ({"slot_bytes": SLOT + 1, "slot_stride_bytes": SLOT}, "slot_bytes"),
        ({"slot_stride_bytes": 0}, "slot_stride_bytes"),
        ({"slots": 9}, "segments[0]"),
        ({"slots": 0}, "segments[0].slot_count"),
    ],
)
def test_a_bad_request_is_refused_with_the_field(world: World, region: Region, changes, field):
    reply = world.try_attach(attach_request(**{"slots": 8, **changes}), [region.descriptor])
    assert reply.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert field in reply.error.message
    assert world.daemon.server_info(GUARD_SECONDS).sessions == 0


def test_features_and_names_are_bounded(world: World, region: Region):
    request = attach_request()
    request.features.extend(["f"] * 65)
    assert "features" in world.try_attach(request, [region.descriptor]).error.message
    request = attach_request()
    request.features.append("f" * 65)
    assert "features[0]" in world.try_attach(request, [region.descriptor]).error.message
    request = attach_request()
    request.segments[0].shm_name = "x"
    assert world.try_attach(request, [region.descriptor]).error.reason == "NAME_ON_LEASE"


@pytest.mark.parametrize("count", [0, 2, 64])
def test_descriptors_must_match_segments(world: World, region: Region, count: int):
    before = own_descriptors()
    reply = world.try_attach(attach_request(), [region.descriptor] * count)
    assert reply.error.reason == "DESCRIPTOR_COUNT"
    wait_for(lambda: own_descriptors() == before)


def test_more_than_64_descriptors_are_refused_and_closed(world: World, region: Region):
    before = own_descriptors()
    reply = world.try_attach(attach_request(), [region.descriptor] * 65)
    assert reply.error.reason == "DESCRIPTORS_TRUNCATED"
    wait_for(lambda: own_descriptors() == before)


def test_descriptors_behind_the_first_byte_are_refused_and_closed(world: World, region: Region):
    before = own_descriptors()
    data = frame(attach_request())
    with world.connect() as connection:
        send_frame(connection, data[:6], [region.descriptor])
        send_frame(connection, data[6:], [region.descriptor])
        assert receive_reply(connection).error.reason == "BAD_FRAME"
    wait_for(lambda: own_descriptors() == before)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0),
        struct.pack(">I", 65_537),
        struct.pack(">I", 0xFFFFFFFF),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff",
    ],
)
def test_garbage_is_refused(world: World, data: bytes):
    with world.connect() as connection:
        connection.sendall(data)
        assert receive_reply(connection).error.reason == "BAD_FRAME"
    world.attach()


def test_a_frame_cut_short_by_the_end_is_refused(world: World, region: Region):
    before = own_descriptors()
    with world.connect() as connection:
        send_frame(connection, frame(attach_request())[:-1], [region.descriptor])
        connection.shutdown(socket.SHUT_WR)
        assert receive_reply(connection).error.reason == "BAD_FRAME"
    wait_for(lambda: own_descriptors() == before)


def test_slow_handshakes_end_by_themselves_and_hold_up_nobody(socket_dir: Path):
    with running(socket_dir, handshake_seconds=0.5) as world:
        region = Region.make()
        with world.connect() as silent, world.connect() as slow:
            send_frame(slow, frame(attach_request())[:3], [region.descriptor])
            world.attach()
            assert receive_reply(silent).error.reason == "HANDSHAKE_TIMEOUT"
            assert receive_reply(slow).error.reason == "HANDSHAKE_TIMEOUT"
            assert silent.recv(1) == slow.recv(1) == b""
        region.close()


def test_pending_handshakes_are_bounded_and_the_oldest_goes(socket_dir: Path):
    with running(socket_dir, handshake_seconds=GUARD_SECONDS, max_pending_handshakes=3) as world:
        connections = [world.connect() for _ in range(4)]
        assert connections[0].recv(1) == b""
        connections[1].settimeout(0)
        with pytest.raises(BlockingIOError):
            connections[1].recv(1)
        world.attach()
        for connection in connections:
            connection.close()


def test_a_client_that_leaves_during_its_attach_leaves_no_session(world: World, region: Region):
    connection = world.connect()
    send_frame(connection, frame(attach_request()), [region.descriptor])
    connection.close()
    wait_for(lambda: world.daemon.server_info(GUARD_SECONDS).counters["sessions_closed"] == 1)


def test_a_region_overlapping_an_attached_one_is_refused(world: World, region: Region):
    first = world.attach()
    reply = world.try_attach(attach_request(), [first.region.descriptor])
    assert reply.error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert reply.error.reason == "REGION_OVERLAP"
    request = attach_request(slots=4)
    request.segments.add(slot_count=1)
    descriptors = [region.descriptor, region.descriptor]
    assert world.try_attach(request, descriptors).error.reason == "REGION_OVERLAP"
    request.segments[1].offset_bytes = 4 * SLOT
    assert world.try_attach(request, descriptors).HasField("attached")


def test_sessions_are_bounded(socket_dir: Path, region: Region):
    with running(socket_dir, max_sessions=1) as world:
        world.attach()
        reply = world.try_attach(attach_request(), [region.descriptor])
        assert reply.error.reason == "TOO_MANY_SESSIONS"
        assert "1" in reply.error.message


@pytest.mark.parametrize("how", ["half-close", "close", "stray byte"])
def test_the_engines_end_cancels_the_queue_awaits_what_runs_then_unmaps(socket_dir: Path, how: str):
    with running(socket_dir) as world:
        world.store.hold = True
        client = world.attach(slots=16, region=Region.make(slots=16))
        client.region.fill(0, 7)
        keys = [bytes([n]) * 36 for n in range(16)]
        client.store(1, keys, range(16))
        wait_for(lambda: len(world.store.held) == STORES_AT_ONCE)
        if how == "half-close":
            client.connection.shutdown(socket.SHUT_WR)
        elif how == "close":
            client.connection.close()
        else:
            client.connection.sendall(b"x")
        info = world.admin().ListSessions
        sessions = _list(info)
        wait_for(lambda: sessions()[0].closing)
        assert world.daemon.server_info(GUARD_SECONDS).queued_store_chunks == 0
        if how != "close":
            assert not client.at_end_of_file(0.3)
        assert _mapped(client.region)
        world.store.release()
        wait_for(lambda: not sessions())
        assert not _mapped(client.region)
        assert len(world.store.objects) == STORES_AT_ONCE
        assert b"\x07" * SLOT in world.store.objects.values()
        if how == "half-close":
            assert client.at_end_of_file(GUARD_SECONDS)


def _list(call):
    return lambda: call(admin_pb2.ListSessionsRequest(), timeout=GUARD_SECONDS).sessions


def _mapped(region: Region) -> bool:
    """Whether the daemon, which shares this process, maps the region besides the test itself."""
    inode = str(os.fstat(region.descriptor).st_ino)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(line.split()[4] == inode for line in maps) > 1


def test_a_view_that_is_still_alive_keeps_region_and_lease(world: World):
    client = world.attach()
    session = next(iter(world.daemon._sessions))
    view = session.region.slot(0)
    client.connection.shutdown(socket.SHUT_WR)
    assert not client.at_end_of_file(0.3)
    assert _mapped(client.region)
    view.release()
    assert client.at_end_of_file(GUARD_SECONDS)
    assert not _mapped(client.region)


def test_a_region_is_unmapped_though_no_thread_can_be_started(world: World, monkeypatch):
    async def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    client = world.attach()
    monkeypatch.setattr(asyncio, "to_thread", none_left)
    client.connection.shutdown(socket.SHUT_WR)
    assert client.at_end_of_file(GUARD_SECONDS)
    assert not _mapped(client.region)


def test_a_load_after_the_engines_end_still_lands_before_end_of_file(socket_dir: Path):
    with running(socket_dir) as world:
        client = world.attach()
        data = client.region.fill(0, 9)
        client.store(1, [KEY], [0])
        client.outcomes(1)
        world.store.hold = True
        client.load(2, [KEY], [1])
        wait_for(lambda: world.store.held)
        client.connection.shutdown(socket.SHUT_WR)
        assert not client.at_end_of_file(0.2)
        world.store.release()
        assert client.at_end_of_file(GUARD_SECONDS)
        assert client.region.read(1) == data
        client.region.fill(1, 3)
        time.sleep(0.1)
        assert client.region.read(1) == b"\x03" * SLOT


def test_a_stopping_daemon_keeps_the_lease_until_its_last_transfer_is_over(socket_dir: Path):
    with running(socket_dir, result_seconds=1.5) as world:
        world.store.hold = True
        client = world.attach(slots=16, region=Region.make(slots=16))
        client.store(1, [bytes([n]) * 36 for n in range(16)], range(16))
        wait_for(lambda: len(world.store.held) == STORES_AT_ONCE)
        world.loop.call_soon_threadsafe(world.daemon.stop)
        wait_for(lambda: not (world.directory / "lease.sock").exists())
        assert not client.at_end_of_file(2.0)
        with pytest.raises(grpc.RpcError) as refusal:
            client.store(2, [KEY], [0])
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(FileNotFoundError):
            world.connect()
        world.store.release()
        outcomes = client.outcomes(1)
        assert outcomes == [types_pb2.CHUNK_OUTCOME_STORED] * STORES_AT_ONCE + [CANCELLED] * 10
        client.stub.Poll(offload_pb2.PollRequest(session=client.ref, ack_seq=client.last_seq))
        assert client.at_end_of_file(GUARD_SECONDS)
        world.thread.join(GUARD_SECONDS)
        assert world.aborts == []


def test_a_region_that_shrank_fails_its_job_and_the_daemon_lives(world: World):
    client = world.attach()
    os.ftruncate(client.region.descriptor, 4 * SLOT)
    client.store(1, [KEY], [6])
    assert client.outcomes(1) == [types_pb2.CHUNK_OUTCOME_INTERNAL]
    client.store(2, [KEY], [0])
    assert client.outcomes(2) == [types_pb2.CHUNK_OUTCOME_STORED]


def test_M06_a_dead_engine_is_unmapped_and_others_notice_nothing(world: World):
    other = world.attach()
    region = Region.make()
    client = world.attach(region)
    client.connection.close()
    wait_for(lambda: not _mapped(region))
    other.store(1, [KEY], [0])
    assert other.outcomes(1) == [types_pb2.CHUNK_OUTCOME_STORED]
    world.attach(region)


def test_N03_a_hundred_attaches_leave_descriptors_and_maps_flat(world: World):
    region = Region.make()

    def once() -> None:
        with world.connect() as connection:
            send_frame(connection, frame(attach_request()), [region.descriptor])
            assert receive_reply(connection).HasField("attached")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""

    once()
    before = own_descriptors()
    for _ in range(100):
        once()
    wait_for(lambda: own_descriptors() <= before)
    assert not _mapped(region)
    region.close()
