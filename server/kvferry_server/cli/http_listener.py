"""A read-only HTTP listener: GET and HEAD of a few fixed paths.

Owns the listening socket, a thread with an event loop of its own, and the little of HTTP/1.1 that
probes and scrapers need: one request per connection, no body. Nothing here can hold up the loop
that moves the chunks. Imports the standard library and core.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from kvferry_server.core.errors import ConfigError

MAX_REQUEST_BYTES = 16 << 10
MAX_CONNECTIONS = 64
CONNECTION_SECONDS = 10.0
_BACKLOG = 64
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""As of ::1 where IPv6 is off; the name may have another address."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()


Pages = Mapping[str, Callable[[], Page]]
"""By path; each is called on a thread of its own and may wait for some seconds."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; nobody is answered yet.

    Raises:
        ConfigError: the address is taken, not this machine's or not allowed.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise _unusable(host, port, error) from None
    problem = OSError()
    for family, kind, protocol, _, address in found:
        try:
            with ExitStack() as undo:
                listener = undo.enter_context(socket.socket(family, kind, protocol))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(_BACKLOG)
                undo.pop_all()
                return listener
        except OSError as error:
            problem = error
            if error.errno not in _NOT_HERE:
                break
    raise _unusable(host, port, problem)


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"can't listen on {host}:{port}: {error.strerror}; choose another address with "
        "--http-listen or KVFERRY_HTTP_LISTEN, or switch the listener off with an empty one",
        reason="HTTP_LISTEN",
        field="http.listen",
    )


class HttpListener:
    """Answers from `pages` until the process ends.

    Args:
        listener: what `bind` returned.
        pages: what there is to get.
    """

    def __init__(self, listener: socket.socket, pages: Pages) -> None:
        self._listener = listener
        self._pages = pages
        self._connections = 0
        self._reading: dict[asyncio.Task[None], None] = {}
        """Connections without a whole request yet, the oldest first."""

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._run, name="kvferry-http", daemon=True).start()

    def _run(self) -> None:
        asyncio.run(self._serve_forever())

    async def _serve_forever(self) -> None:
        server = await asyncio.start_server(
            self._serve, sock=self._listener, limit=MAX_REQUEST_BYTES
        )
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections += 1
        self._reading[task] = None
        if self._connections > MAX_CONNECTIONS:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                await self._answer(reader, writer, task)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the peer went away or dawdles; it gets no answer
        finally:
            self._reading.pop(task, None)
            self._connections -= 1
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            page, head_only = _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), False
        else:
            self._reading.pop(task, None)
            page, head_only = await self._page(request)
        more = "".join(f"{name}: {value}\r\n" for name, value in page.headers)
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            f"{more}"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + (b"" if head_only else page.body))
        await writer.drain()

    async def _page(self, request: bytes) -> tuple[Page, bool]:
        """The answer, and whether only its head is wanted."""
        words = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != len(("method", "target", "version")) or not words[2].startswith("HTTP/1."):
            return _error(HTTPStatus.BAD_REQUEST), False
        method, target, _ = words
        if method not in {"GET", "HEAD"}:
            return _error(HTTPStatus.METHOD_NOT_ALLOWED), False
        make = self._pages.get(target.partition("?")[0])
        page = await asyncio.to_thread(make) if make else _error(HTTPStatus.NOT_FOUND)
        return page, method == "HEAD"


def _error(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n".encode(), status=status)
