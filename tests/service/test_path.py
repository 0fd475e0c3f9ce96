"""The whole path over real gRPC and a real lease: attach, store, lookup, load, poll, detach."""

from __future__ import annotations

from kvferry.v1 import types_pb2

from .harness import World

KEYS = [bytes([n]) * 32 + b"\0\0\0\0" for n in range(1, 5)]


def test_store_lookup_load_round_trip(world: World):
    client = world.attach()
    stored = [client.region.fill(slot, 10 + slot) for slot in range(4)]
    assert client.store(1, KEYS, [0, 1, 2, 3]) == 1
    assert client.outcomes(1) == [types_pb2.CHUNK_OUTCOME_STORED] * 4
    assert client.lookup([*KEYS, b"absent key"]) == [types_pb2.PRESENCE_PRESENT] * 4 + [
        types_pb2.PRESENCE_ABSENT
    ]
    for slot in range(8):
        client.region.fill(slot, 0)
    assert client.load(2, KEYS, [7, 6, 5, 4]) == 1
    assert client.outcomes(2) == [types_pb2.CHUNK_OUTCOME_LOADED] * 4
    assert [client.region.read(slot) for slot in (7, 6, 5, 4)] == stored
    assert client.detach().boot_id == client.response.boot_id
    assert client.at_end_of_file(5)


def test_stop_ends_leases_and_removes_only_its_sockets(world: World):
    client = world.attach()
    (world.directory / "other").write_text("kept")
    world.stop()
    assert client.at_end_of_file(5)
    assert sorted(p.name for p in world.directory.iterdir()) == ["kvferry.lock", "other"]
    assert world.store.closed
