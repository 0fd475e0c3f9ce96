"""Between the client's values and the wire's messages. Imports the stubs, no grpc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration

from kvferry.v1 import offload_pb2, types_pb2
from kvferry_client.jobs import WireResult
from kvferry_client.limits import SessionLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvferry_client.jobs import Part
    from kvferry_client.lookups import LookupSlice
    from kvferry_client.region import RegionSource
    from kvferry_client.types import RequestContext

MAX_REQUEST_ID_BYTES: Final = 256
MAX_TRANSFER_PARAMS: Final = 16
MAX_PARAM_KEY_BYTES: Final = 64
MAX_PARAM_VALUE_BYTES: Final = 256
MIN_LOOKUP_SECONDS: Final = 0.001
MAX_LOOKUP_SECONDS: Final = 60.0


def duration(seconds: float) -> Duration:
    """Return a Duration of `seconds`, which must not be negative."""
    whole = int(seconds)
    return Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def seconds_of(value: Duration) -> float:
    """Return a Duration in seconds."""
    return float(value.seconds) + value.nanos / 1e9


def attach_request(
    region: RegionSource,
    *,
    client_version: str,
    engine_id: str,
    namespace: str,
    vllm_namespace: str,
    slot_bytes: int,
) -> offload_pb2.AttachRegionRequest:
    """Describe a region for the lease."""
    return offload_pb2.AttachRegionRequest(
        client_version=client_version,
        engine_id=engine_id,
        namespace=namespace,
        vllm_namespace=vllm_namespace,
        slot_bytes=slot_bytes,
        slot_stride_bytes=region.slot_stride_bytes,
        segments=[
            offload_pb2.RegionSegment(
                offset_bytes=segment.offset_bytes, slot_count=segment.slot_count
            )
            for segment in region.segments
        ],
    )


def limits_of(limits: types_pb2.Limits) -> SessionLimits:
    """Read the daemon's bounds; a field that it left out keeps this client's default."""
    default = SessionLimits()
    return SessionLimits(
        max_keys_per_request=limits.max_keys_per_request or default.max_keys_per_request,
        max_jobs_per_request=limits.max_jobs_per_request or default.max_jobs_per_request,
        max_bytes_per_request=limits.max_bytes_per_request or default.max_bytes_per_request,
        max_key_bytes=limits.max_key_bytes or default.max_key_bytes,
        max_open_jobs=limits.max_open_jobs or default.max_open_jobs,
        max_wait_seconds=seconds_of(limits.max_wait) or default.max_wait_seconds,
        max_message_bytes=limits.max_message_bytes or default.max_message_bytes,
    )


def context_message(context: RequestContext) -> types_pb2.RequestContext:
    """Encode a request's context, cut to what the contract allows."""
    fitting = [
        (key, value)
        for key, value in context.transfer_params
        if len(key.encode()) <= MAX_PARAM_KEY_BYTES and len(value.encode()) <= MAX_PARAM_VALUE_BYTES
    ]
    return types_pb2.RequestContext(
        request_id=_cut(context.request_id, MAX_REQUEST_ID_BYTES),
        priority=max(-1000, min(1000, context.priority)),
        transfer_params=dict(fitting[:MAX_TRANSFER_PARAMS]),
    )


def job_messages(parts: Iterable[Part]) -> list[offload_pb2.Job]:
    """Encode the parts of a batch."""
    return [
        offload_pb2.Job(
            job_id=part.wire_id,
            keys=part.keys,
            slots=part.slots,
            context=context_message(part.context),
        )
        for part in parts
    ]


def lookup_request(
    session: types_pb2.SessionRef, slices: Sequence[LookupSlice], timeout_seconds: float
) -> offload_pb2.LookupRequest:
    """Encode the slices of one lookup request, one group each."""
    timeout = max(MIN_LOOKUP_SECONDS, min(timeout_seconds, MAX_LOOKUP_SECONDS))
    return offload_pb2.LookupRequest(
        session=session,
        groups=[
            offload_pb2.LookupGroup(
                context=context_message(piece.context),
                prefix_ordered=piece.prefix_ordered,
                keys=piece.keys,
            )
            for piece in slices
        ],
        timeout=duration(timeout),
    )


def wire_result(result: offload_pb2.JobResult) -> WireResult:
    """Decode one result of a Poll."""
    return WireResult(
        seq=result.seq,
        wire_id=result.job_id,
        kind=int(result.kind),
        outcomes=tuple(int(number) for number in result.outcomes),
        transferred_bytes=result.transferred_bytes,
        transfer_seconds=seconds_of(result.transfer_time),
    )


def _cut(text: str, size: int) -> str:
    """Cut to at most `size` bytes of UTF-8 without leaving half a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
