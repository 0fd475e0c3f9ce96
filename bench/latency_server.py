"""An S3 look-alike that is fast and as slow as it is told: `python -m bench.latency_server PORT`.

It answers what the contestants ask (PUT, GET with a range, HEAD, DELETE of objects in one bucket;
signatures are not looked at) after a latency, over a link of limited bandwidth that all
connections share. Real servers on this machine answer in a few milliseconds and compute for each
request; here a HEAD costs some 50 us of one core, so that the contestants' own limits show.
Everything is in memory. `PUT /-/latency` with a body `<seconds> <bytes per second, 0 for any>` sets
both. Standard library only.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from urllib.parse import unquote

HEAD_END = b"\r\n\r\n"
CONTROL = "/-/latency"
_ETAG = b'ETag: "0"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Link:
    """The objects, and when what is sent over the link arrives."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.latency = 0.0
        self.bytes_per_second = 0.0
        self._free_at = 0.0

    def delay(self, size: int) -> float:
        """Seconds until so many bytes are through."""
        if not self.bytes_per_second:
            return self.latency
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + size / self.bytes_per_second
        return self._free_at - now + self.latency


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection; one request at a time, as S3 clients do it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._head or HEAD_END in self._buffer:
            if not self._head:
                head, _, rest = self._buffer.partition(HEAD_END)
                self._head, self._buffer = bytes(head), rest
                self._missing = int(_header(self._head, b"content-length") or 0)
                if _header(self._head, b"expect") and self._transport is not None:
                    self._transport.write(_CONTINUE)
            if len(self._buffer) < self._missing:
                return
            body = bytes(self._buffer[: self._missing])
            del self._buffer[: self._missing]
            head, self._head = self._head, b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        line = head[: head.index(b"\r\n")].decode("latin-1")
        method, target, _version = line.split(" ", 2)
        path = unquote(target.partition("?")[0])
        if path == CONTROL:
            latency, bandwidth = body.split()
            self._link.latency = float(latency)
            self._link.bytes_per_second = float(bandwidth)
            self._send(_response(b"200 OK"), 0.0)
            return
        answer, size = self._act(method, path, _header(head, b"range"), body)
        self._send(answer, self._link.delay(size))

    def _act(self, method: str, path: str, span: bytes, body: bytes) -> tuple[list[bytes], int]:
        """The response, and how many bytes of content went one way or the other."""
        objects = self._link.objects
        if path.strip("/").count("/") == 0:
            return _response(b"200 OK"), 0
        if method == "PUT":
            objects[path] = body
            return _response(b"200 OK", _ETAG), len(body)
        data = objects.pop(path, None) if method == "DELETE" else objects.get(path)
        if data is None:
            return _response(b"404 Not Found"), 0
        return self._content(data, method, span)

    def _content(self, data: bytes, method: str, span: bytes) -> tuple[list[bytes], int]:
        if method == "DELETE":
            return _response(b"204 No Content"), 0
        if method == "HEAD":
            return [_lines(b"200 OK", _ETAG, len(data))], 0
        if not span:
            return _response(b"200 OK", _ETAG, data), len(data)
        first, _, last = span.removeprefix(b"bytes=").partition(b"-")
        begin, end = int(first), min(int(last or len(data)), len(data) - 1)
        where = b"Content-Range: bytes %d-%d/%d\r\n" % (begin, end, len(data))
        piece = data if end - begin + 1 == len(data) else data[begin : end + 1]
        return _response(b"206 Partial Content", _ETAG + where, piece), len(piece)

    def _send(self, answer: list[bytes], delay: float) -> None:
        transport = self._transport
        if transport is None:
            return
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, transport.writelines, answer)
        else:
            transport.writelines(answer)


def _response(status: bytes, headers: bytes = b"", body: bytes = b"") -> list[bytes]:
    head = _lines(status, headers, len(body))
    return [head, body] if body else [head]


def _lines(status: bytes, headers: bytes, length: int) -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status, headers, length)


def _header(head: bytes, name: bytes) -> bytes:
    """Value of a header, empty if it is missing."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return b""
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def main() -> None:
    """Serve until standard input ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    link = Link()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(link), "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
