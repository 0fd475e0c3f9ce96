"""Wire messages to core values and back.

Checks what only the wire form can get wrong (texts, durations, sizes of small fields); the
engine checks keys, slots, ids and caps. Every refusal names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import cast

from google.protobuf import duration_pb2

from kvferry.v1 import admin_pb2, offload_pb2, types_pb2
from kvferry_server.core.errors import InvalidArgument
from kvferry_server.core.naming import check_namespace, check_vllm_namespace
from kvferry_server.core.ports import CheckStep, SegmentSpec
from kvferry_server.core.types import (
    Admission,
    EngineSettings,
    JobResult,
    JobSpec,
    LookupGroup,
    Presence,
    RequestContext,
)

__all__ = [
    "admissions",
    "before_deadline",
    "check_attach",
    "duration",
    "jobs",
    "limits",
    "lookup_groups",
    "lookup_seconds",
    "poll_results",
    "preflight_steps",
    "segments",
    "verdicts",
    "wait_seconds",
]

MAX_LOOKUP_SECONDS = 60.0
MAX_SEGMENTS = 64
MAX_FEATURES = 64
MAX_FEATURE_BYTES = 64
MAX_VERSION_BYTES = 64
MAX_ENGINE_ID_BYTES = 128
MAX_REQUEST_ID_BYTES = 256
MAX_PARAMS = 16
MAX_PARAM_KEY_BYTES = 64
MAX_PARAM_VALUE_BYTES = 256
MAX_PRIORITY = 1_000
POLL_BYTES = 2 << 20
"""Results of one Poll beyond this wait for the next one, so that a default client reads them."""
_RESULT_OVERHEAD_BYTES = 64
_ANSWER_SECONDS = 0.1
_NANOS = 1_000_000_000


def check_attach(request: offload_pb2.AttachRegionRequest) -> None:
    """Check the texts and counts of an attach; sizes are the region mapper's.

    Raises:
        InvalidArgument: names the field.
    """
    _check_text("client_version", request.client_version, MAX_VERSION_BYTES, at_least=1)
    _check_text("engine_id", request.engine_id, MAX_ENGINE_ID_BYTES, at_least=1)
    check_namespace(request.namespace)
    check_vllm_namespace(request.vllm_namespace)
    _check_count("features", len(request.features), MAX_FEATURES)
    for index, feature in enumerate(request.features):
        _check_text(f"features[{index}]", feature, MAX_FEATURE_BYTES)
    _check_count("segments", len(request.segments), MAX_SEGMENTS, at_least=1)


def segments(request: offload_pb2.AttachRegionRequest) -> tuple[SegmentSpec, ...]:
    """The parts of a region."""
    return tuple(SegmentSpec(each.offset_bytes, each.slot_count) for each in request.segments)


def limits(settings: EngineSettings, max_message_bytes: int) -> types_pb2.Limits:
    """The bounds that a client is told."""
    return types_pb2.Limits(
        max_keys_per_request=settings.max_keys_per_request,
        max_jobs_per_request=settings.max_jobs_per_request,
        max_bytes_per_request=settings.max_bytes_per_request,
        max_key_bytes=settings.max_key_bytes,
        max_open_jobs=settings.max_open_jobs,
        max_wait=duration(settings.max_wait_seconds),
        max_message_bytes=max_message_bytes,
    )


def jobs(messages: Iterable[offload_pb2.Job]) -> tuple[JobSpec, ...]:
    """Jobs of a Store or Load.

    Raises:
        InvalidArgument: names the field.
    """
    return tuple(
        JobSpec(
            job.job_id,
            tuple(job.keys),
            tuple(job.slots),
            _context(job.context, f"jobs[{index}].context"),
        )
        for index, job in enumerate(messages)
    )


def lookup_groups(messages: Iterable[offload_pb2.LookupGroup]) -> tuple[LookupGroup, ...]:
    """Groups of a Lookup.

    Raises:
        InvalidArgument: names the field.
    """
    return tuple(
        LookupGroup(
            tuple(group.keys),
            group.prefix_ordered,
            _context(group.context, f"groups[{index}].context"),
        )
        for index, group in enumerate(messages)
    )


def lookup_seconds(request: offload_pb2.LookupRequest, default: float) -> float:
    """The timeout of a Lookup.

    Raises:
        InvalidArgument: not above 0 or above 60 s.
    """
    if not request.HasField("timeout"):
        return default
    seconds = _seconds("timeout", request.timeout)
    if not 0 < seconds <= MAX_LOOKUP_SECONDS:
        raise InvalidArgument(
            f"timeout must be more than 0 and at most {MAX_LOOKUP_SECONDS:.0f} s, is {seconds:g} s",
            reason="OUT_OF_RANGE",
            field="timeout",
        )
    return seconds


def wait_seconds(message: duration_pb2.Duration, limit: float) -> float:
    """A `max_wait`, cut to the limit.

    Raises:
        InvalidArgument: negative.
    """
    seconds = _seconds("max_wait", message)
    if seconds < 0:
        raise InvalidArgument(
            f"max_wait must not be negative, is {seconds:g} s",
            reason="OUT_OF_RANGE",
            field="max_wait",
        )
    return min(seconds, limit)


def before_deadline(wait_seconds: float, remaining_seconds: float) -> float:
    """A wait that ends early enough for the answer to arrive before the call's deadline."""
    return max(0.0, min(wait_seconds, remaining_seconds - _ANSWER_SECONDS))


def duration(seconds: float) -> duration_pb2.Duration:
    """Seconds as a Duration."""
    message = duration_pb2.Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def verdicts(groups: Iterable[Sequence[Presence]]) -> list[offload_pb2.LookupVerdicts]:
    """Verdicts of a Lookup, by group."""
    return [
        offload_pb2.LookupVerdicts(verdicts=cast("Sequence[types_pb2.Presence]", group))
        for group in groups
    ]


def admissions(values: Sequence[Admission]) -> Sequence[offload_pb2.JobAdmission]:
    """Admissions of a Store or Load."""
    return cast("Sequence[offload_pb2.JobAdmission]", values)


def poll_results(results: Iterable[JobResult]) -> list[offload_pb2.JobResult]:
    """Results of a Poll: the first ones, as many as fit into one message, at least one."""
    messages: list[offload_pb2.JobResult] = []
    size = 0
    for result in results:
        size += len(result.outcomes) + _RESULT_OVERHEAD_BYTES
        if messages and size > POLL_BYTES:
            break
        messages.append(_job_result(result))
    return messages


def preflight_steps(steps: Iterable[CheckStep]) -> list[admin_pb2.CheckStep]:
    """Steps of a preflight."""
    return [
        admin_pb2.CheckStep(
            name=step.name,
            passed=step.passed,
            detail=step.detail,
            duration=duration(step.seconds),
        )
        for step in steps
    ]


def _job_result(result: JobResult) -> offload_pb2.JobResult:
    return offload_pb2.JobResult(
        seq=result.seq,
        job_id=result.job_id,
        kind=cast("types_pb2.JobKind", result.kind),
        outcomes=cast("Sequence[types_pb2.ChunkOutcome]", result.outcomes),
        transferred_bytes=result.transferred_bytes,
        transfer_time=duration(result.transfer_seconds),
    )


def _context(message: types_pb2.RequestContext, field: str) -> RequestContext:
    _check_text(f"{field}.request_id", message.request_id, MAX_REQUEST_ID_BYTES)
    _check_count(f"{field}.transfer_params", len(message.transfer_params), MAX_PARAMS)
    for key, value in message.transfer_params.items():
        _check_text(f"{field}.transfer_params", key, MAX_PARAM_KEY_BYTES)
        _check_text(f"{field}.transfer_params", value, MAX_PARAM_VALUE_BYTES)
    priority = max(-MAX_PRIORITY, min(MAX_PRIORITY, message.priority))
    params = tuple(sorted(message.transfer_params.items()))
    return RequestContext(message.request_id, priority, params)


def _check_text(field: str, text: str, at_most: int, at_least: int = 0) -> None:
    length = len(text.encode())
    if not at_least <= length <= at_most:
        raise InvalidArgument(
            f"{field} must have {at_least} to {at_most} bytes, has {length}",
            reason="BAD_LENGTH",
            field=field,
        )


def _check_count(field: str, count: int, at_most: int, at_least: int = 0) -> None:
    if not at_least <= count <= at_most:
        raise InvalidArgument(
            f"{field} must have {at_least} to {at_most} entries, has {count}",
            reason="BAD_COUNT",
            field=field,
        )


def _seconds(field: str, message: duration_pb2.Duration) -> float:
    if not -_NANOS < message.nanos < _NANOS:
        raise InvalidArgument(
            f"{field}.nanos must be below one second", reason="OUT_OF_RANGE", field=field
        )
    return message.seconds + message.nanos / _NANOS
