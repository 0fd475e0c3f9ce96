"""The process behind `fault_server.FaultServer`: an HTTP server that plays S3 and obeys rules.

Usage: `python -m tests.support.fault_server_process PORT BUCKET MODES_JSON`. Everything lives in
memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import sys
import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

PIECES = 8
MAX_LINE_BYTES = 1 << 20


@dataclass
class Rule:
    """A fault with its count of matching requests and the end of its hangs."""

    fault: dict[str, Any]
    seen: int = 0
    removed: asyncio.Event = field(default_factory=asyncio.Event)

    def bites(self, request: Call) -> bool:
        """Whether it applies to this request; counts it."""
        fault = self.fault
        if fault["method"] not in ("*", request.method) or not fnmatchcase(
            request.key, fault["key"]
        ):
            return False
        signer = f"Credential={fault['access_key']}/"
        if fault["access_key"] and signer in request.headers.get("authorization", ""):
            return False
        self.seen += 1
        after = self.seen - fault["skip"]
        return after > 0 and (not fault["times"] or after <= fault["times"])


@dataclass
class Call:
    """One request; `log` is what the control side gets to see of it."""

    method: str
    bucket: str
    key: str
    query: str
    headers: dict[str, str]
    body: bytes
    log: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """One response; `length` is the Content-Length that it claims."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


def error(status: int, code: str) -> Answer:
    """An S3 error; without a code it has no body."""
    if not code:
        return Answer(status)
    text = f"<Code>{code}</Code><Message>{code}</Message><RequestId>1</RequestId>"
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error>{text}</Error>'.encode()
    return Answer(status, body, {"Content-Type": "application/xml"})


def unframed(body: bytes) -> bytes:
    """The payload of an aws-chunked body."""
    payload, at = bytearray(), 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if not size:
            return bytes(payload)
        payload += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


class Bucket:
    """The S3 side: answers as a right server would."""

    def __init__(self, name: str, modes: dict[str, bool]) -> None:
        self.names = {name}
        self.modes = modes
        self.objects: dict[str, bytes] = {}

    def answer(self, call: Call, fault: dict[str, Any]) -> Answer:
        """The right answer to a request, but for the fault's `size`, `discard` and `mangle`."""
        if self.modes["refuse_checksums"] and carries_checksum(call.headers):
            return error(501, "NotImplemented")
        if not call.bucket:
            return self._list_buckets()
        if not call.key:
            return self._bucket(call)
        if call.bucket not in self.names:
            return error(404, "NoSuchBucket")
        handlers = {"PUT": self._put, "GET": self._get, "HEAD": self._get, "DELETE": self._delete}
        handler = handlers.get(call.method)
        return handler(call, fault) if handler else error(405, "MethodNotAllowed")

    def _list_buckets(self) -> Answer:
        names = "".join(f"<Bucket><Name>{escape(each)}</Name></Bucket>" for each in self.names)
        body = f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>"
        return Answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _bucket(self, call: Call) -> Answer:
        if call.method == "PUT":
            self.names.add(call.bucket)
            return Answer(200)
        if call.bucket not in self.names:
            return error(404, "NoSuchBucket")
        if call.method == "HEAD":
            return Answer(200)
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size></Contents>"
            for key, body in sorted(self.objects.items())
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        return Answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _put(self, call: Call, fault: dict[str, Any]) -> Answer:
        body = call.body
        if framed(call.headers) and not self.modes["keep_framing"]:
            body = unframed(body)
        if call.headers.get("if-none-match") == "*" and call.key in self.objects:
            return error(412, "PreconditionFailed")
        if fault.get("mangle"):
            body = bytes([body[0] ^ 0xFF]) + body[1:]
        if not fault.get("discard"):
            self.objects[call.key] = body
        return Answer(200, headers={"ETag": etag(body)})

    def _get(self, call: Call, fault: dict[str, Any]) -> Answer:
        body = self.objects.get(call.key)
        if body is None:
            return error(404, "NoSuchKey")
        size = fault.get("size")
        if size is not None:
            body = body[:size].ljust(size, b"\0")
        headers = {"ETag": etag(body), "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
        if not asked:
            return Answer(200, body, headers)
        first = int(asked[1])
        last = min(int(asked[2] or len(body)), len(body) - 1)
        if first >= len(body):
            return error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return Answer(206, body[first : last + 1], headers)

    def _delete(self, call: Call, _: dict[str, Any]) -> Answer:
        self.objects.pop(call.key, None)
        return Answer(204)


def etag(body: bytes) -> str:
    """What S3 calls a plain object's entity tag."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def framed(headers: dict[str, str]) -> bool:
    """Whether the body is aws-chunked."""
    return "aws-chunked" in headers.get("content-encoding", "") or streaming(headers)


def streaming(headers: dict[str, str]) -> bool:
    """Whether the payload hash announces chunks."""
    return headers.get("x-amz-content-sha256", "").startswith("STREAMING-")


def carries_checksum(headers: dict[str, str]) -> bool:
    """Whether a request has anything of the newer checksum feature."""
    names = any(each.startswith("x-amz-checksum-") or each == "x-amz-trailer" for each in headers)
    return names or framed(headers)


class Server:
    """Connections, rules and the log of requests."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.rules: dict[int, Rule] = {}
        self.last_rule = 0
        self.calls: list[dict[str, Any]] = []
        self.connections = self.max_connections = self.last_connection = 0
        self.in_flight = self.max_in_flight = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        self.connections += 1
        self.last_connection += 1
        number = self.last_connection
        counted = False
        try:
            while (call := await read_call(reader, writer)) is not None:
                if call.bucket == "_fault":
                    await self._control(call, writer)
                    continue
                if not counted:
                    counted = True
                    self.max_connections = max(self.max_connections, self.connections)
                if not await self._answer(call, number, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def _answer(self, call: Call, connection: int, writer: asyncio.StreamWriter) -> bool:
        call.log = {
            "connection": connection,
            "method": call.method,
            "bucket": call.bucket,
            "key": call.key,
            "query": call.query,
            "headers": call.headers,
            "body_bytes": len(call.body),
            "began": time.monotonic(),
            "finished": 0.0,
            "status": 0,
        }
        self.calls.append(call.log)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            rule = next((each for each in reversed(self.rules.values()) if each.bites(call)), None)
            return await self._reply(call, rule, writer)
        finally:
            self.in_flight -= 1

    async def _reply(self, call: Call, rule: Rule | None, writer: asyncio.StreamWriter) -> bool:
        fault = rule.fault if rule else {}
        if fault.get("drop") == "start":
            writer.transport.abort()
            return False
        failed = fault.get("status", 0)
        answer = error(failed, fault["code"]) if failed else self.bucket.answer(call, fault)
        await asyncio.sleep(fault.get("delay", 0))
        if rule and fault["hang"] == "start":
            await rule.removed.wait()
        call.log["status"] = answer.status
        close = self.bucket.modes["close_each"]
        writer.write(head(answer, fault.get("headers", {}), close=close))
        if call.method != "HEAD" and not await send_body(answer.body, rule, writer):
            return False
        await writer.drain()
        call.log["finished"] = time.monotonic()
        return not close

    async def _control(self, call: Call, writer: asyncio.StreamWriter) -> None:
        if call.key in ("put", "get", "delete"):
            answer = self._object(call.key, unquote(call.query), call.body)
        else:
            result = getattr(self, f"control_{call.key}")(json.loads(call.body))
            answer = Answer(200, json.dumps(result).encode())
        writer.write(head(answer, {}, close=False) + answer.body)
        await writer.drain()

    def _object(self, operation: str, key: str, body: bytes) -> Answer:
        if operation == "put":
            self.bucket.objects[key] = body
        elif operation == "delete":
            self.bucket.objects.pop(key, None)
        elif key in self.bucket.objects:
            return Answer(200, self.bucket.objects[key])
        else:
            return Answer(404)
        return Answer(200)

    def control_add(self, fault: dict[str, Any]) -> int:
        """Add a rule."""
        self.last_rule += 1
        self.rules[self.last_rule] = Rule(fault)
        return self.last_rule

    def control_remove(self, rule: int) -> None:
        """Remove a rule and let its requests go on."""
        self.rules.pop(rule).removed.set()

    def control_clear(self, _: None) -> None:
        """Remove all rules."""
        for rule in list(self.rules):
            self.control_remove(rule)

    def control_reset(self, _: None) -> None:
        """Forget requests and maxima."""
        self.calls.clear()
        self.max_connections = self.max_in_flight = 0

    def control_requests(self, wanted: dict[str, str]) -> list[dict[str, Any]]:
        """Requests that match."""
        return [
            each
            for each in self.calls
            if wanted["method"] in ("*", each["method"]) and fnmatchcase(each["key"], wanted["key"])
        ]

    def control_counters(self, _: None) -> dict[str, int]:
        """Without the control's own connection."""
        return {
            "connections": self.connections - 1,
            "max_connections": self.max_connections,
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
        }

    def control_keys(self, _: None) -> list[str]:
        """All keys."""
        return sorted(self.bucket.objects)


def head(answer: Answer, extra: dict[str, str], *, close: bool) -> bytes:
    """Status line and headers."""
    headers = {"Content-Length": str(len(answer.body))} | answer.headers | extra
    if close:
        headers["Connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode()


async def send_body(body: bytes, rule: Rule | None, writer: asyncio.StreamWriter) -> bool:
    """Send it as the rule wants; False if the connection is over."""
    if rule is None:
        writer.write(body)
        return True
    fault = rule.fault
    step = max(1, -(-len(body) // PIECES))
    for at in range(0, len(body), step):
        if fault["slow"]:
            await asyncio.sleep(fault["slow"] / PIECES)
        if at >= len(body) // 2:
            if fault["drop"] == "body":
                await writer.drain()
                writer.transport.abort()
                return False
            if fault["hang"] == "body":
                await rule.removed.wait()
        writer.write(body[at : at + step])
        await writer.drain()
    return True


async def read_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call | None:
    """The next request of a connection; None at its end."""
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if "expect" in headers:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in headers.get("transfer-encoding", "").split(","):
        body = await read_chunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length") or 0))
    path, _, query = target.partition("?")
    bucket, _, key = path.removeprefix("/").partition("/")
    return Call(method, unquote(bucket), unquote(key), query, headers, body)


async def read_chunked(reader: asyncio.StreamReader) -> bytes:
    """A body in HTTP's own chunks."""
    body = bytearray()
    while size := int((await reader.readline()).strip() or b"0", 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()) not in (b"\r\n", b""):
        pass
    return bytes(body)


async def main(port: int, bucket: str, modes: dict[str, bool]) -> None:
    """Serve until killed."""
    server = Server(Bucket(bucket, modes))
    listener = await asyncio.start_server(
        server.serve, "127.0.0.1", port, backlog=1024, limit=MAX_LINE_BYTES
    )
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
