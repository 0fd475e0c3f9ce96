"""kvferry's thin client: hands a shared-memory region to the daemon and moves chunks by number.

Imports grpcio and protobuf only, starts no thread at import, and never blocks the thread
that submits work. `Client` is the real thing, `FakeClient` the same surface in memory for
other people's tests; the vLLM tier is in `kvferry_client.vllm_tier`.
"""

from kvferry_client.client import Client
from kvferry_client.errors import (
    AttachRefusedError,
    DaemonUnreachableError,
    KVFerryClientError,
    RegionError,
)
from kvferry_client.fake import FakeClient
from kvferry_client.types import (
    ClientState,
    JobKind,
    JobResult,
    LookupReply,
    Outcome,
    Presence,
    RequestContext,
)

__all__ = [
    "AttachRefusedError",
    "Client",
    "ClientState",
    "DaemonUnreachableError",
    "FakeClient",
    "JobKind",
    "JobResult",
    "KVFerryClientError",
    "LookupReply",
    "Outcome",
    "Presence",
    "RegionError",
    "RequestContext",
]
