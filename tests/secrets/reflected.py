"""Calls every method that a server shows by reflection, and keeps every byte that comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

if TYPE_CHECKING:
    from pathlib import Path

GUARD_SECONDS = 60.0


def everything_said(socket_path: Path) -> dict[str, bytes]:
    """What each unary method answers to an empty request: its bytes, or its error with metadata."""
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{socket_path}", options=options) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(database)
        said = {}
        for service in database.get_services():
            for method in pool.FindServiceByName(service).methods:
                if not (method.client_streaming or method.server_streaming):
                    said[f"{service}/{method.name}"] = _call(channel, service, method)
        return said


def _call(channel: grpc.Channel, service: str, method) -> bytes:
    request = message_factory.GetMessageClass(method.input_type)()
    if "enabled" in request.DESCRIPTOR.fields_by_name:
        request.enabled = False
    call = channel.unary_unary(f"/{service}/{method.name}")
    try:
        answer, ended = call.with_call(request.SerializeToString(), timeout=GUARD_SECONDS)
    except grpc.RpcError as error:
        parts = [error.details(), *error.initial_metadata(), *error.trailing_metadata()]
        return repr(parts).encode()
    metadata = [*ended.initial_metadata(), *ended.trailing_metadata()]
    return answer + repr(metadata).encode()
