"""What the HTTP listener shows of a daemon: a status page, `/metrics`, `/healthz`, `/readyz`.

Imports the metrics adapter and the contract's messages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path

from kvferry.v1 import admin_pb2
from kvferry_server.adapters.metrics import CONTENT_TYPE, Metrics, Snapshot
from kvferry_server.adapters.telemetry import Reading
from kvferry_server.core.errors import Unavailable

from .health import require_serving
from .history import SAMPLE_SECONDS, History, sample
from .http_listener import Page, Pages
from .snapshot import take_snapshot
from .status_page import render_page
from .status_style import POLICY

LOOP_SECONDS = 2.0
"""Longest wait for the daemon's event loop."""
HTML = "text/html; charset=utf-8"
PAGE_HEADERS = (("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"))

ServerInfo = Callable[[float], admin_pb2.GetServerInfoResponse]


class DaemonPages:
    """The pages of one daemon.

    Args:
        server_info: takes a snapshot within so many seconds, or raises TimeoutError.
        measurements: what was measured since the start.
        socket: the socket that must serve for the daemon to be ready.
    """

    def __init__(
        self, server_info: ServerInfo, measurements: Callable[[], Reading], socket: Path
    ) -> None:
        self._server_info = server_info
        self._measurements = measurements
        self._socket = socket
        self._history = History()
        self._metrics = Metrics(lambda: self._snapshot(self._info()))

    def pages(self) -> Pages:
        """Every page by its path."""
        shown = {
            "/": self._status,
            "/metrics": lambda: Page(self._metrics.render(), CONTENT_TYPE),
            "/healthz": self._health,
            "/readyz": self._readiness,
        }
        return {path: partial(_unless_stuck, show) for path, show in shown.items()}

    def remember(self) -> None:
        """Blocking, until the process ends: take the samples that the status page draws."""
        while True:
            with contextlib.suppress(TimeoutError):
                self._history.add(sample(self._snapshot(self._info()), time.monotonic()))
            time.sleep(SAMPLE_SECONDS)

    def _info(self) -> admin_pb2.GetServerInfoResponse:
        return self._server_info(LOOP_SECONDS)

    def _snapshot(self, info: admin_pb2.GetServerInfoResponse) -> Snapshot:
        return take_snapshot(info, self._measurements())

    def _status(self) -> Page:
        info = self._info()
        snapshot = self._snapshot(info)
        rates = self._history.rates(sample(snapshot, time.monotonic()))
        text = render_page(info, snapshot, rates, degraded(info), time.time())
        return Page(text.encode(), HTML, headers=PAGE_HEADERS)

    def _health(self) -> Page:
        self._info()
        return Page(b"ok\n")

    def _readiness(self) -> Page:
        try:
            require_serving(self._socket)
        except Unavailable as error:
            return _unavailable(error.message)
        lines = ["ready", *(f"degraded: {each}" for each in degraded(self._info()))]
        return Page("".join(f"{line}\n" for line in lines).encode())


def _unless_stuck(show: Callable[[], Page]) -> Page:
    try:
        return show()
    except TimeoutError:
        return _unavailable(f"the event loop does not turn within {LOOP_SECONDS:g} s")


def degraded(info: admin_pb2.GetServerInfoResponse) -> list[str]:
    """What does not work as it should, one line each; engines go on without it."""
    found = []
    if not info.store.ready:
        found.append(f"store not ready: {info.store.problem or 'being checked'}")
    for name, state in (
        ("reading", info.store.read_breaker),
        ("writing", info.store.write_breaker),
    ):
        if state != admin_pb2.BREAKER_STATE_CLOSED:
            found.append(f"the breaker for {name} is open")
    for name, paused in (("stores", info.stores_paused), ("loads", info.loads_paused)):
        if paused:
            found.append(f"{name} are paused")
    return found


def _unavailable(why: str) -> Page:
    return Page(f"{why}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
