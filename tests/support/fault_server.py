"""A small S3 look-alike that misbehaves on command: the faults that real servers won't produce.

Owns: the faults and their control. The server itself (`fault_server_process`) is a process of its
own, so that nothing in the test process (the GIL, a frozen thread) can stop it, and it can be
frozen or killed like any server.

    with FaultServer() as server:
        rule = server.add(Fault(method="GET", key="*/slow.bin", delay=0.5, times=2))
        ...
        server.requests(method="GET")     # what came, with times of time.monotonic()
        server.put("some/key", b"...")    # objects, without going through S3

It stores what is PUT (aws-chunked bodies decoded), and answers GET with ranges, HEAD, DELETE, HEAD
bucket, create bucket, list buckets and a plain list of objects. Credentials are not checked, unless
a fault says so.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import shutil
import socket
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from .processes import Child, clean_environment, free_ports, listens

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "kvferry-test"
START_SECONDS = 30.0
CONTROL_SECONDS = 30.0

Point = Literal["", "start", "body"]
"""Where a fault bites: never, before the answer, or after half of a GET's body."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with which requests. Of several that match, the newest wins.

    Args:
        method: HTTP method, `*` for all.
        key: `fnmatch` pattern over the key in the bucket; `` (empty) is the bucket itself.
        skip: let this many matching requests through first.
        times: then bite this many times; 0 for ever.
        delay: seconds before the answer begins (a PUT is stored before).
        status: answer with this status and an error body, and do nothing; 0 for the right answer.
        code: S3 error code in the body, such as `SlowDown`; empty: no body at all.
        headers: added to the answer.
        size: GET and HEAD answer as if the object had this many bytes (cut, or zeros added).
        slow: seconds over which a GET's body goes out, in eight pieces.
        hang: nothing more is sent from there on until the rule is removed.
        drop: the connection is reset there. With a PUT, `start` is after the body was read.
        discard: PUT answers 200 and stores nothing.
        mangle: stores the body with its first byte changed.
        access_key: bites only requests that are not signed with this key.
    """

    method: str = "*"
    key: str = "*"
    skip: int = 0
    times: int = 0
    delay: float = 0.0
    status: int = 0
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    size: int | None = None
    slow: float = 0.0
    hang: Point = ""
    drop: Point = ""
    discard: bool = False
    mangle: bool = False
    access_key: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came. Times are those of `time.monotonic()`.

    Args:
        connection: number of its TCP connection, from 1.
        finished: when the last byte of the answer was handed to the kernel; 0.0 if not yet or
            never.
        status: of the answer; 0 if none was given.
        body_bytes: length of the request's body as it came.
    """

    connection: int
    method: str
    bucket: str
    key: str
    query: str
    headers: dict[str, str]
    body_bytes: int
    began: float
    finished: float
    status: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Connections and requests: now open, and the most at once since `reset`."""

    connections: int
    max_connections: int
    in_flight: int
    max_in_flight: int


class FaultServer:
    """The server and its control. A context manager: started on entry, removed at the end.

    Args:
        bucket: made at start.
        keep_framing: aws-chunked bodies are stored as they come, as some servers do.
        refuse_checksums: 501 to any request with aws-chunked, a trailer, an x-amz-checksum-* header
            or a STREAMING- payload hash.
        close_each: the connection is closed after each answer.
    """

    def __init__(
        self,
        bucket: str = BUCKET,
        *,
        keep_framing: bool = False,
        refuse_checksums: bool = False,
        close_each: bool = False,
    ) -> None:
        self.bucket = bucket
        self.port = 0
        self._modes = {
            "keep_framing": keep_framing,
            "refuse_checksums": refuse_checksums,
            "close_each": close_each,
        }
        self._directory = Path(tempfile.mkdtemp(prefix="kvferry-fault-"))
        self._child: Child | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint_url(self) -> str:
        """The S3 endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running.pid

    def environment(self) -> dict[str, str]:
        """The variables that point an AWS SDK at this server; the keys are made up."""
        return {
            "AWS_ACCESS_KEY_ID": "kvferrytest",
            "AWS_SECRET_ACCESS_KEY": "kvferry-test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start, or start again on the same port; objects, rules and requests are gone."""
        self.port = self.port or free_ports(1)[0]
        modes = json.dumps(self._modes)
        module = "tests.support.fault_server_process"
        path = {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", module, str(self.port), self.bucket, modes]
        self._child = Child(command, self._directory / "log", clean_environment(path))
        self._child.wait_until(lambda: listens(self.port), START_SECONDS)
        self.reset()

    def stop(self) -> None:
        """End it as a crash does; `start` brings it back on the same port."""
        if self._child:
            self._child.kill()

    def close(self) -> None:
        """End it and leave nothing behind."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def signal(self, number: Any) -> None:
        """Send a signal, such as SIGSTOP: then it accepts connections and answers nothing."""
        self._running.signal(number)

    def add(self, fault: Fault) -> int:
        """Add a rule; its number is for `remove`."""
        return int(self._json("add", dataclasses.asdict(fault)))

    def remove(self, rule: int) -> None:
        """Remove a rule; requests that hang in it go on, with the right answer."""
        self._json("remove", rule)

    def clear(self) -> None:
        """Remove all rules."""
        self._json("clear", None)

    def reset(self) -> None:
        """Forget the requests so far, and count anew."""
        self._json("reset", None)

    def requests(self, method: str = "*", key: str = "*") -> list[Request]:
        """The requests so far in the order of arrival; `key` is a `fnmatch` pattern."""
        found = self._json("requests", {"method": method, "key": key})
        return [Request(**each) for each in found]

    def counters(self) -> Counters:
        """Connections and requests in flight."""
        return Counters(**self._json("counters", None))

    def put(self, key: str, body: bytes) -> None:
        """Store an object."""
        self._call("put", body, key)

    def get(self, key: str) -> bytes | None:
        """The stored bytes; None if there is no such object."""
        status, body = self._call("get", b"", key)
        return body if status == http.HTTPStatus.OK else None

    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""
        self._call("delete", b"", key)

    def keys(self) -> list[str]:
        """The keys of all stored objects, sorted."""
        return [str(each) for each in self._json("keys", None)]

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError("the fault server was not started")
        return self._child

    def _json(self, operation: str, argument: object) -> Any:
        _, body = self._call(operation, json.dumps(argument).encode())
        return json.loads(body)

    def _call(self, operation: str, body: bytes, key: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CONTROL_SECONDS)
        try:
            connection.request("POST", f"/_fault/{operation}?{quote(key, safe='')}", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def full_backlog() -> Iterator[int]:
    """A loopback port whose accept queue is full: a connection attempt gets no answer at all."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield int(address[1])
