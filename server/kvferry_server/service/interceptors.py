"""What surrounds every handler of a kvferry service: bound, deadline, error mapping, debug log.

Health and reflection are left alone, so that they answer whatever the rest does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from kvferry_server.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    KvferryError,
    ResourceExhausted,
)
from kvferry_server.core.telemetry import Telemetry

from .status import STATUS_KEY, code_of, cut, status_of

__all__ = ["CallInterceptor"]

_log = logging.getLogger(__name__)

MAX_CALL_SECONDS = 120.0
"""For callers that set no deadline; longer than any wait that the contract allows."""
_PREFIX = "/kvferry."
_WAITING = frozenset({"Poll", "Drain", "DetachRegion"})
_LOOKUPS = frozenset({"Lookup"})

_Context = grpc.aio.ServicerContext[Message, Message]
_Parse = Callable[[bytes], Message]
_Behavior = Callable[[Message, _Context], Awaitable[Message]]


class _Bound:
    """A count of calls that is never exceeded. gRPC's own limit fails after its first wave."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._count = 0

    def __enter__(self) -> None:
        if self._count >= self._limit:
            raise ResourceExhausted(
                f"max_concurrent_rpcs {self._limit} {self._name} calls are running: retry later",
                reason="TOO_MANY_CALLS",
            )
        self._count += 1

    def __exit__(self, *_exc_info: object) -> None:
        self._count -= 1


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps unary handlers. Waiting calls, lookups and the rest have a bound each."""

    def __init__(self, max_concurrent_rpcs: int, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._waiting = _Bound("waiting", max_concurrent_rpcs)
        self._lookups = _Bound("lookup", max_concurrent_rpcs)
        self._others = _Bound("other", max_concurrent_rpcs)
        self._handlers: dict[str, grpc.RpcMethodHandler[Message, Message]] = {}
        """Wrapped ones, by method: looking one up and wrapping it costs more than a short call."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Message, Message]]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Message, Message]:
        method = handler_call_details.method
        wrapped = self._handlers.get(method)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        # None, against gRPC's types, for a method that nobody serves.
        unary = cast("_Behavior | None", getattr(handler, "unary_unary", None))
        if unary is None or not method.startswith(_PREFIX):
            return handler
        parse = cast("_Parse", handler.request_deserializer)
        wrapped = self._handlers[method] = grpc.unary_unary_rpc_method_handler(
            self._wrap(method.rpartition("/")[2], unary, parse),
            response_serializer=handler.response_serializer,
        )
        return wrapped

    def _wrap(
        self, name: str, behavior: _Behavior, parse: _Parse
    ) -> Callable[[bytes, _Context], Awaitable[Message]]:
        bound = self._bound(name)

        async def call(data: bytes, context: _Context) -> Message:
            begin = time.monotonic()
            code = grpc.StatusCode.OK
            try:
                with bound:
                    async with asyncio.timeout(MAX_CALL_SECONDS):
                        return await behavior(_parsed(data, parse), context)
            except KvferryError as error:
                code = code_of(error)
                await _refuse(context, name, error)
            except TimeoutError:
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                text = f"{name} took longer than {MAX_CALL_SECONDS:g} s"
                await _refuse(context, name, DeadlineExceeded(text, reason="CALL_TOO_LONG"))
            except (asyncio.CancelledError, grpc.aio.AbortError):
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception:  # noqa: BLE001 -- gRPC would send the exception's text
                code = grpc.StatusCode.INTERNAL
                _log.exception("%s failed", name)
                await context.abort(
                    grpc.StatusCode.INTERNAL, "a fault in the daemon; its log has the details"
                )
            finally:
                seconds = time.monotonic() - begin
                self._telemetry.call_ended(name, code.name, seconds)
                _log.debug("%s: %s after %.1f ms", name, code.name, seconds * 1e3)

        return call

    def _bound(self, name: str) -> _Bound:
        if name in _WAITING:
            return self._waiting
        return self._lookups if name in _LOOKUPS else self._others


def _parsed(data: bytes, parse: _Parse) -> Message:
    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidArgument(
            "the message does not parse as this method's request", reason="BAD_MESSAGE"
        ) from error


async def _refuse(context: _Context, name: str, error: KvferryError) -> NoReturn:
    _log.debug("%s refused: %s %s", name, error.reason, cut(error.message))
    details = ((STATUS_KEY, status_of(error).SerializeToString()),)
    await context.abort(code_of(error), cut(error.message), trailing_metadata=details)
