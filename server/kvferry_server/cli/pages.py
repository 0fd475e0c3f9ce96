"""What the HTTP listener shows of a daemon: `/metrics`, `/healthz`, `/readyz`.

Imports the metrics adapter and the contract's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from kvferry.v1 import admin_pb2
from kvferry_server.adapters.metrics import CONTENT_TYPE, Metrics
from kvferry_server.adapters.telemetry import Reading
from kvferry_server.core.errors import Unavailable

from .health import require_serving
from .http_listener import Page, Pages
from .snapshot import take_snapshot

LOOP_SECONDS = 2.0
"""Longest wait for the daemon's event loop."""

ServerInfo = Callable[[float], admin_pb2.GetServerInfoResponse]


def daemon_pages(
    server_info: ServerInfo, measurements: Callable[[], Reading], socket: Path
) -> Pages:
    """The pages of one daemon.

    Args:
        server_info: takes a snapshot within so many seconds, or raises TimeoutError.
        measurements: what was measured since the start.
        socket: the socket that must serve for the daemon to be ready.
    """
    metrics = Metrics(lambda: take_snapshot(server_info(LOOP_SECONDS), measurements()))

    def show_metrics() -> Page:
        try:
            return Page(metrics.render(), CONTENT_TYPE)
        except TimeoutError:
            return _stuck()

    def show_health() -> Page:
        try:
            server_info(LOOP_SECONDS)
        except TimeoutError:
            return _stuck()
        return Page(b"ok\n")

    def show_readiness() -> Page:
        try:
            require_serving(socket)
            degraded = _degraded(server_info(LOOP_SECONDS))
        except Unavailable as error:
            return _unavailable(error.message)
        except TimeoutError:
            return _stuck()
        return Page("".join(f"{line}\n" for line in ["ready", *degraded]).encode())

    return {"/metrics": show_metrics, "/healthz": show_health, "/readyz": show_readiness}


def _degraded(info: admin_pb2.GetServerInfoResponse) -> list[str]:
    """What does not work as it should, one line each; engines go on without it."""
    found = []
    if not info.store.ready:
        found.append(f"degraded: store not ready: {info.store.problem or 'being checked'}")
    for name, state in (
        ("reading", info.store.read_breaker),
        ("writing", info.store.write_breaker),
    ):
        if state != admin_pb2.BREAKER_STATE_CLOSED:
            found.append(f"degraded: the breaker for {name} is open")
    for name, paused in (("stores", info.stores_paused), ("loads", info.loads_paused)):
        if paused:
            found.append(f"degraded: {name} are paused")
    return found


def _stuck() -> Page:
    return _unavailable(f"the event loop does not turn within {LOOP_SECONDS:g} s")


def _unavailable(why: str) -> Page:
    return Page(f"{why}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
