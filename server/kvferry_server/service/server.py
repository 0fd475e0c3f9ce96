"""The daemon as a whole: wires engine, runner, lease, gRPC servers and signals.

Knows adapters only as `Ports`.

Lifecycle: lock the directory, build the ports, listen, check the store in the background;
on SIGTERM refuse new work, remove the sockets, await transfers, let clients fetch results,
end the sessions, close the store.
Failure: if a transfer outlives the shutdown limit, the process ends at once; its mappings die
before its leases and its lock do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import quote

import grpc.aio

from kvferry.v1 import admin_pb2, admin_pb2_grpc, offload_pb2, offload_pb2_grpc
from kvferry_server.core.effects import BreakerChanged, JobFinished
from kvferry_server.core.engine import Engine
from kvferry_server.core.errors import DeadlineExceeded
from kvferry_server.core.events import Stop
from kvferry_server.core.ports import Clock, ObjectStore, RegionMapper
from kvferry_server.core.telemetry import SILENCE, Telemetry
from kvferry_server.core.types import EngineSettings

from .admin_servicer import AdminServicer
from .health import Health
from .interceptors import CallInterceptor
from .lease import LeaseServer
from .offload_servicer import OffloadServicer
from .peers import PeerPolicy
from .runner import Runner
from .sessions import SessionTable
from .settings import ADMIN_SOCKET, OFFLOAD_SOCKET, ServerSettings
from .sockets import SocketDirectory
from .store_check import StoreCheck

__all__ = ["Daemon", "Ports", "ServerSettings", "run"]

_log = logging.getLogger(__name__)

_MAX_STREAMS_PER_CONNECTION = 1_024
_STORE_CLOSE_SECONDS = 1.0
_RPC_GRACE_SECONDS = 0.5
_SAME_SENDER_SECONDS = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_OFFLOAD_SERVICE: str = offload_pb2.DESCRIPTOR.services_by_name["OffloadService"].full_name
_ADMIN_SERVICE: str = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world, as the daemon needs it.

    Args:
        store: where objects are. The daemon runs its preflight and closes it at the end.
        regions: maps shared memory.
        clock: monotonic time.
        abort: ends the process at once, without clean-up; gets the reason.
        heartbeat: called on the event loop's thread every `loop_beat_seconds`.
        observe: called on the event loop's thread for logs.
        telemetry: takes measurements.
    """

    store: ObjectStore
    regions: RegionMapper
    clock: Clock
    abort: Callable[[str], object]
    heartbeat: Callable[[], None] = lambda: None
    observe: Callable[[JobFinished | BreakerChanged], None] = lambda _effect: None
    telemetry: Telemetry = SILENCE


class Daemon:
    """A daemon. Made, served and stopped on one event loop's thread.

    Args:
        make_ports: called once the directory is locked, so that a second daemon on the same
            directory touches nothing.

    Raises:
        ConfigError: a socket path or group that can't be used.
        FailedPrecondition: another daemon has the directory.
    """

    def __init__(
        self, make_ports: Callable[[], Ports], engine: EngineSettings, settings: ServerSettings
    ) -> None:
        self.boot_id = uuid.uuid4().hex
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._directory = SocketDirectory(settings)
        self._ports = ports = make_ports()
        self._runner = Runner(
            Engine(engine), ports.store, ports.clock, ports.abort, ports.observe, ports.telemetry
        )
        self._sessions = SessionTable(
            self._runner, ports.regions, settings, self.boot_id, ports.telemetry
        )
        self._check = StoreCheck(ports.store, self._runner)
        self._admin = AdminServicer(self._runner, self._sessions, ports.store, self._check)

    def stop(self) -> None:
        """Begin a clean stop. Event loop's thread only; may be repeated."""
        self._stop.set()

    def abort(self, reason: str) -> None:
        """End the process at once."""
        self._ports.abort(reason)

    def refresh_credentials(self) -> None:
        """Have the store read its credentials anew soon."""
        _log.info("credentials are read anew")
        self._ports.store.refresh_credentials()

    def server_info(self, timeout_seconds: float) -> admin_pb2.GetServerInfoResponse:
        """A snapshot of the daemon, from any thread but the event loop's.

        Raises:
            TimeoutError: the loop did not answer in time.
        """

        async def snapshot() -> admin_pb2.GetServerInfoResponse:
            return self._admin.server_info()

        future = asyncio.run_coroutine_threadsafe(snapshot(), self._loop)
        return future.result(timeout_seconds)

    async def serve(self, on_started: Callable[[Daemon], None] = lambda _daemon: None) -> None:
        """Serve until `stop`; returns after a clean end."""
        offload = self._grpc_server()
        offload_pb2_grpc.add_OffloadServiceServicer_to_server(
            OffloadServicer(self._runner, self._sessions, self._settings), offload
        )
        admin = self._grpc_server()
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self._admin, admin)
        servers = (offload, admin)
        healths = (Health(offload, [_OFFLOAD_SERVICE]), Health(admin, [_ADMIN_SERVICE]))
        for server, name in zip(servers, (OFFLOAD_SOCKET, ADMIN_SOCKET), strict=True):
            with self._directory.binding(name) as path:
                server.add_insecure_port(f"unix:{quote(os.fspath(path))}")
            await server.start()
        lease = LeaseServer(
            self._directory.bind_lease(), self._peer_policy(), self._sessions, self._settings
        )
        for health in healths:
            await health.serving()
        lease.start()
        background = (
            self._loop.create_task(self._beat()),
            self._loop.create_task(self._check.until_ready()),
        )
        _log.info("boot %s: serving on %s", self.boot_id, self._directory.path)
        try:
            on_started(self)
            await self._stop.wait()
            await self._wind_down(lease, servers, healths)
        except BaseException as error:
            # Python's own end would close leases while transfers still run.
            self._ports.abort(f"the daemon failed: {error!r}")
            raise
        finally:
            for task in background:
                task.cancel()

    async def _wind_down(
        self, lease: LeaseServer, servers: Sequence[grpc.aio.Server], healths: Sequence[Health]
    ) -> None:
        engine = self._runner.engine
        _log.info("stopping: %d chunks in transfer", sum(engine.active.values()))
        self._directory.remove_sockets()
        lease.stop_accepting()
        self._runner.send(Stop())
        for health in healths:
            await health.stopping()
        try:
            async with asyncio.timeout(self._settings.shutdown_seconds):
                await self._runner.until(lambda: not any(engine.active.values()))
                await self._within(
                    self._settings.result_seconds,
                    self._runner.until(lambda: not any(s.open_jobs for s in engine.sessions())),
                )
                await self._sessions.end_all()
        except TimeoutError as error:
            limit = f"shutdown_seconds {self._settings.shutdown_seconds:g}"
            raise DeadlineExceeded(
                f"regions are still in use after {limit}", reason="SHUTDOWN_TIMEOUT"
            ) from error
        for server in servers:
            await server.stop(_RPC_GRACE_SECONDS)
        await self._within(_STORE_CLOSE_SECONDS, asyncio.to_thread(self._ports.store.close))
        self._runner.close()
        _log.info("stopped")

    async def _within(self, seconds: float, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            _log.info("stopping: not waiting any longer than %g s", seconds)

    async def _beat(self) -> None:
        while True:
            self._ports.heartbeat()
            self._sessions.end_idle()
            await asyncio.sleep(self._settings.loop_beat_seconds)

    def _grpc_server(self) -> grpc.aio.Server:
        settings = self._settings
        return grpc.aio.server(
            interceptors=[CallInterceptor(settings.max_concurrent_rpcs, self._ports.telemetry)],
            options=[
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                ("grpc.max_concurrent_streams", _MAX_STREAMS_PER_CONNECTION),
                ("grpc.keepalive_permit_without_calls", 1),
                (
                    "grpc.http2.min_ping_interval_without_data_ms",
                    int(settings.min_ping_seconds * 1_000),
                ),
                ("grpc.so_reuseport", 0),
            ],
        )

    def _peer_policy(self) -> PeerPolicy:
        gid = self._directory.gid
        tenants = self._settings.tenants
        return PeerPolicy(
            self._settings.allowed_uids | tenants.by_uid.keys(),
            self._settings.allowed_gids
            | tenants.by_gid.keys()
            | ({gid} if gid is not None else set()),
            allow_overflow=self._settings.allow_overflow_uid,
        )


class _Signals:
    """SIGTERM and SIGINT, also while the daemon is still being built. They work as process 1.

    A second one ends the process at once, unless it follows the first so closely that the same
    sender may have sent both (to the process and to its group). SIGHUP has credentials read anew.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._daemon: Daemon | None = None
        self._first: float | None = None
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._received)
        loop.add_signal_handler(signal.SIGHUP, self._renew)

    def stop(self, daemon: Daemon) -> None:
        """Stop this daemon on the first signal, or now if it came already."""
        self._daemon = daemon
        if self._first is not None:
            daemon.stop()

    def _renew(self) -> None:
        if self._daemon is not None:
            self._daemon.refresh_credentials()

    def _received(self) -> None:
        now = self._loop.time()
        if self._first is None:
            self._first = now
            if self._daemon is not None:
                self._daemon.stop()
        elif now - self._first > _SAME_SENDER_SECONDS and self._daemon is not None:
            self._daemon.abort("a second signal came")


def run(
    make_ports: Callable[[], Ports],
    engine: EngineSettings,
    settings: ServerSettings,
    on_started: Callable[[Daemon], None] = lambda _daemon: None,
) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then end the process with status 0.

    The end skips the interpreter's and the SDKs' teardown, and threads that still wait for an
    unreachable store. Raises like `Daemon` before it serves.
    """

    async def main() -> None:
        signals = _Signals(asyncio.get_running_loop())
        daemon = Daemon(make_ports, engine, settings)
        signals.stop(daemon)
        await daemon.serve(on_started)

    asyncio.new_event_loop().run_until_complete(main())
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(os.EX_OK)
