"""Calls of OffloadService that a test expects to be refused, or not."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from kvferry.v1 import offload_pb2

from .harness import GUARD_SECONDS, Client

KEY = b"k" * 32 + b"\0\0\0\0"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
METHODS = {
    "DetachRegion": offload_pb2.DetachRegionRequest,
    "Lookup": offload_pb2.LookupRequest,
    "Store": offload_pb2.StoreRequest,
    "Load": offload_pb2.LoadRequest,
    "Poll": offload_pb2.PollRequest,
    "Drain": offload_pb2.DrainRequest,
}


def call(client: Client, method: str, **fields):
    request = METHODS[method](session=client.ref, **fields)
    return getattr(client.stub, method)(request, timeout=GUARD_SECONDS)


def refusal(client: Client, method: str, **fields):
    """Code, field and ErrorInfo of a refused call."""
    with pytest.raises(grpc.RpcError) as caught:
        call(client, method, **fields)
    status = rpc_status.from_call(caught.value)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "kvferry"
    assert info.reason == info.reason.upper()
    assert status.message == caught.value.details()
    return caught.value.code(), info.metadata["field"], info
