"""Hostile calls of every method that reflection shows, many at a time, each with its answer."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import descriptor_pool
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from kvferry.v1 import types_pb2
from tests.service.harness import GUARD_SECONDS

from .generate import Generator

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

Code = grpc.StatusCode
DEFINED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.UNAUTHENTICATED,
    Code.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED,
    Code.FAILED_PRECONDITION,
    Code.DEADLINE_EXCEEDED,
}
IN_FLIGHT = 64
ENDS_SESSION = {"DetachRegion"}


@dataclass
class Tally:
    """What was sent and what came back."""

    inputs: int = 0
    authenticated: int = 0
    """Calls on a session that were let in: neither NOT_FOUND, UNAUTHENTICATED nor unparsed."""
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    undefined: list[str] = field(default_factory=list)


class RpcAttack:
    """Calls every method of one socket.

    Args:
        session: the right reference of a session of the attacker's own, now.
        likely: see `Generator`.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        seed: int,
        session: types_pb2.SessionRef | None = None,
        likely: dict[str, list[Any]] | None = None,
        leave_out: frozenset[str] = frozenset(),
    ) -> None:
        self.session = session
        self.tally = Tally()
        self._channel = channel
        self._source = random.Random(seed)
        self._generator = Generator(self._source, likely or {})
        self._room = threading.Semaphore(IN_FLIGHT)
        self._lock = threading.Lock()
        self._job_ids = itertools.count(4000)
        database = ProtoReflectionDescriptorDatabase(channel)
        self._pool = descriptor_pool.DescriptorPool(database)
        self._methods = [
            (service, method)
            for service in database.get_services()
            for method in self._pool.FindServiceByName(service).methods
            if not (method.client_streaming or method.server_streaming)
            and method.name not in leave_out
        ]

    @property
    def methods(self) -> list[str]:
        """What is called."""
        return [method.name for _, method in self._methods]

    def send(self, count: int) -> None:
        """Send so many calls; returns when all are answered."""
        for _ in range(count):
            self._one(*self._source.choice(self._methods))
        for _ in range(IN_FLIGHT):
            assert self._room.acquire(timeout=GUARD_SECONDS)
        for _ in range(IN_FLIGHT):
            self._room.release()

    def _one(self, service: str, method: MethodDescriptor) -> None:
        message = self._generator.message(method.input_type)
        on_session = "session" in method.input_type.fields_by_name
        if on_session:
            self._name_session(message, method.name)
        if "jobs" in method.input_type.fields_by_name and self._source.random() < 0.4:
            self._repair(message)
        data = message.SerializeToString()
        if service.startswith("kvferry.") and self._source.random() < 0.2:
            data = self._generator.mutated(data)
        assert self._room.acquire(timeout=GUARD_SECONDS)
        call = self._channel.unary_unary(f"/{service}/{method.name}")
        future = call.future(data, timeout=GUARD_SECONDS)
        future.add_done_callback(
            lambda ended: self._answered(method.name, ended, on_session=on_session)
        )

    def _repair(self, message: Any) -> None:
        """Jobs that get beyond the first checks."""
        for job in message.jobs:
            job.job_id = next(self._job_ids)
            del job.keys[8:]
            job.slots[:] = self._source.sample(range(8), len(job.keys))
            job.ClearField("context")

    def _name_session(self, message: Any, method: str) -> None:
        chance = self._source.random()
        if self.session is None or chance > 0.85:
            return
        message.session.ParseFromString(self.session.SerializeToString())
        if method in ENDS_SESSION:
            message.session.token = message.session.token[:-1]
        elif chance > 0.8:
            message.session.token = self._generator.mutated(message.session.token)

    def _answered(self, method: str, ended: grpc.Future, *, on_session: bool) -> None:
        code = ended.code()
        defined = code in DEFINED or (method, code) == ("List", Code.UNIMPLEMENTED)
        problem = "" if defined else f"{method}: {code} {ended.details()}"
        if code in DEFINED and code is not Code.OK:
            problem = _without_info(method, ended)
        with self._lock:
            self.tally.inputs += 1
            self.tally.codes[method, code.name] += 1
            refused = code in {Code.NOT_FOUND, Code.UNAUTHENTICATED} or _is_garbage(ended)
            if on_session and not refused:
                self.tally.authenticated += 1
            if problem:
                self.tally.undefined.append(problem)
        self._room.release()


def _info(ended: grpc.Future) -> error_details_pb2.ErrorInfo | None:
    for name, value in ended.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            status_pb2.Status.FromString(value).details[0].Unpack(info)
            return info
    return None


def _is_garbage(ended: grpc.Future) -> bool:
    if ended.code() is not Code.INVALID_ARGUMENT:
        return False
    info = _info(ended)
    return info is None or info.reason == "BAD_MESSAGE"


def _without_info(method: str, ended: grpc.Future) -> str:
    if ended.code() is Code.NOT_FOUND and method in {"Check", "Watch", "List"}:
        return ""
    info = _info(ended)
    if info is not None and info.domain == "kvferry" and info.reason:
        return ""
    return f"{method}: {ended.code()} without ErrorInfo: {ended.details()}"
