"""A whole session with nothing but descriptors fetched by reflection, as grpcurl does it."""

from __future__ import annotations

import mmap
import uuid
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from .harness import GUARD_SECONDS, SLOT, running, wait_for

Call = Callable[..., dict]


def caller(channel: grpc.Channel) -> tuple[list[str], Call]:
    """The services of a server, and a function that calls any method with JSON in and out."""
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)

    def call(service: str, method: str, request: dict | None = None) -> dict:
        found = pool.FindServiceByName(service).FindMethodByName(method)
        kind = message_factory.GetMessageClass(found.input_type)
        answer = channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=kind.SerializeToString,
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )(json_format.ParseDict(request or {}, kind()), timeout=GUARD_SECONDS)
        return json_format.MessageToDict(answer)

    return list(database.get_services()), call


def test_reflection_drives_health_attach_store_lookup_load_and_poll(socket_dir: Path):
    path = Path("/dev/shm") / f"kvferry_test_{uuid.uuid4().hex}"
    with (
        running(socket_dir, debug_attach_by_name=True) as world,
        path.open("x+b") as file,
    ):
        file.truncate(4 * SLOT)
        memory = mmap.mmap(file.fileno(), 4 * SLOT)
        memory[:SLOT] = b"\x21" * SLOT
        try:
            services, call = caller(world.channel())
            assert sorted(services) == [
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
                "kvferry.v1.OffloadService",
            ]
            for name in ("", "kvferry.v1.OffloadService"):
                answer = call("grpc.health.v1.Health", "Check", {"service": name})
                assert answer == {"status": "SERVING"}
            _drive(call, path.name, memory)
            wait_for(lambda: len(world.store.objects) == 1)
        finally:
            path.unlink()
            memory.close()


def _drive(call: Call, shm_name: str, memory: mmap.mmap) -> None:
    service = "kvferry.v1.OffloadService"
    key = "a2V5IG9mIHRoZSBjaHVuaw=="
    attached = call(
        service,
        "AttachRegion",
        {
            "clientVersion": "grpcurl",
            "engineId": "by-hand",
            "namespace": "debug",
            "slotBytes": SLOT,
            "slotStrideBytes": SLOT,
            "segments": [{"slotCount": 4, "shmName": shm_name}],
        },
    )
    session = attached["session"]
    store = {"session": session, "jobs": [{"jobId": 1, "keys": [key], "slots": [0]}]}
    assert call(service, "Store", store)["admissions"] == ["JOB_ADMISSION_ACCEPTED"]
    assert call(service, "Store", store)["admissions"] == ["JOB_ADMISSION_JOINED"]
    poll = call(service, "Poll", {"session": session, "maxWait": "20s"})
    assert poll["results"][0]["outcomes"] == ["CHUNK_OUTCOME_STORED"]
    lookup = {"session": session, "groups": [{"keys": [key], "prefixOrdered": True}]}
    verdicts = call(service, "Lookup", lookup)["groups"][0]["verdicts"]
    assert verdicts == ["PRESENCE_PRESENT"]
    load = {"session": session, "jobs": [{"jobId": 2, "keys": [key], "slots": [3]}]}
    assert call(service, "Load", load)["admissions"] == ["JOB_ADMISSION_ACCEPTED"]
    poll = call(service, "Poll", {"session": session, "ackSeq": "1", "maxWait": "20s"})
    assert poll["results"][0]["outcomes"] == ["CHUNK_OUTCOME_LOADED"]
    assert memory[3 * SLOT :] == memory[:SLOT]
    assert call(service, "Store", store)["admissions"] == ["JOB_ADMISSION_ALREADY_REPORTED"]
    call(service, "DetachRegion", {"session": session, "maxWait": "20s"})
    with pytest.raises(grpc.RpcError) as caught:
        call(service, "Poll", {"session": session})
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_admin_service_by_reflection(socket_dir: Path):
    with running(socket_dir) as world:
        services, call = caller(world.channel("admin.sock"))
        assert "kvferry.v1.AdminService" in services
        assert "kvferry.v1.OffloadService" not in services
        info = call("kvferry.v1.AdminService", "GetServerInfo")
        assert info["bootId"] == world.daemon.boot_id
        health = call("grpc.health.v1.Health", "Check", {"service": "kvferry.v1.AdminService"})
        assert health == {"status": "SERVING"}
