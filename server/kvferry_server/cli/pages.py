"""What the HTTP listener shows of a daemon: `/metrics`, `/healthz`, `/readyz`.

Imports the metrics adapter and the contract's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from kvferry.v1 import admin_pb2
from kvferry_server.adapters.metrics import CONTENT_TYPE, Metrics, Snapshot
from kvferry_server.core.errors import Unavailable

from .health import require_serving
from .http_listener import Page, Pages

LOOP_SECONDS = 2.0
"""Longest wait for the daemon's event loop."""

ServerInfo = Callable[[float], admin_pb2.GetServerInfoResponse]


def daemon_pages(server_info: ServerInfo, socket: Path) -> Pages:
    """The pages of one daemon.

    Args:
        server_info: takes a snapshot within so many seconds, or raises TimeoutError.
        socket: the socket that must serve for the daemon to be ready.
    """
    metrics = Metrics(lambda: _snapshot(server_info(LOOP_SECONDS)))

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


def _snapshot(info: admin_pb2.GetServerInfoResponse) -> Snapshot:
    return Snapshot(
        version=info.version,
        counters=info.counters,
        gauges={
            "sessions": info.sessions,
            "queued_store_chunks": info.queued_store_chunks,
            "queued_load_chunks": info.queued_load_chunks,
            "active_chunks": info.active_chunks,
            "max_active_chunks": info.store.max_active_chunks,
            "store_ready": info.store.ready,
            "read_breaker": info.store.read_breaker,
            "write_breaker": info.store.write_breaker,
            "stores_paused": info.stores_paused,
            "loads_paused": info.loads_paused,
            "start_time_seconds": info.start_time.ToNanoseconds() / 1e9,
        },
    )


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
