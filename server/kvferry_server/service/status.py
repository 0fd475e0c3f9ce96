"""How each core error looks on the wire: one table, one text limit."""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from kvferry_server.core import errors
from kvferry_server.core.errors import KvferryError

__all__ = ["DOMAIN", "MAX_TEXT_BYTES", "STATUS_KEY", "code_of", "cut", "status_of"]

DOMAIN = "kvferry"
MAX_TEXT_BYTES = 2_048
STATUS_KEY = "grpc-status-details-bin"
_ELLIPSIS = " ..."
_ESCAPED_BYTES = 3
_PRINTABLE = range(0x20, 0x7F)

_CODES: dict[type[KvferryError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
}


def code_of(error: KvferryError) -> grpc.StatusCode:
    """The status code of an error.

    Raises:
        KeyError: the class is not in the table.
    """
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def status_of(error: KvferryError) -> status_pb2.Status:
    """Code, cut text and an ErrorInfo."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if error.field:
        info.metadata["field"] = cut(error.field)
    detail = any_pb2.Any()
    detail.Pack(info)
    number: int = code_of(error).value[0]
    return status_pb2.Status(code=number, message=cut(error.message), details=[detail])


def cut(text: str) -> str:
    """Text of at most 2,048 bytes in its percent-encoded form, so that it fits gRPC's headers."""
    budget = MAX_TEXT_BYTES - len(_ELLIPSIS)
    used = 0
    for position, character in enumerate(text):
        used += _encoded_bytes(character)
        if used > budget:
            return text if _fits(text) else text[:position] + _ELLIPSIS
    return text


def _fits(text: str) -> bool:
    return sum(map(_encoded_bytes, text)) <= MAX_TEXT_BYTES


def _encoded_bytes(character: str) -> int:
    if ord(character) in _PRINTABLE and character != "%":
        return 1
    return _ESCAPED_BYTES * len(character.encode("utf-8", "replace"))
