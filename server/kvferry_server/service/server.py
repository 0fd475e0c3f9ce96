"""The daemon as a whole: wires engine, runner, lease, gRPC servers and signals.

Knows adapters only as `Ports`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from kvferry_server.core.effects import BreakerChanged, JobFinished
from kvferry_server.core.ports import Clock, ObjectStore, RegionMapper
from kvferry_server.core.types import EngineSettings

from .settings import ServerSettings

__all__ = ["Daemon", "Ports", "ServerSettings", "run", "serve"]


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world, as the daemon needs it.

    Args:
        store: where objects are. The daemon runs its preflight and closes it at the end.
        regions: maps shared memory.
        clock: monotonic time.
        heartbeat: called on the event loop's thread, at least once a second.
        observe: called on the event loop's thread for logs and metrics.
    """

    store: ObjectStore
    regions: RegionMapper
    clock: Clock
    heartbeat: Callable[[], None] = lambda: None
    observe: Callable[[JobFinished | BreakerChanged], None] = lambda _effect: None


class Daemon:
    """A running daemon."""


async def serve(
    ports: Ports,
    engine: EngineSettings,
    settings: ServerSettings,
    on_started: Callable[[Daemon], None] = lambda _daemon: None,
) -> None:
    """Serve until SIGTERM, SIGINT or `Daemon.stop`; returns after a clean stop.

    Raises:
        ConfigError: a socket path or group that can't be used.
        FailedPrecondition: another daemon has the directory.
    """
    raise NotImplementedError


def run(
    ports: Ports,
    engine: EngineSettings,
    settings: ServerSettings,
    on_started: Callable[[Daemon], None] = lambda _daemon: None,
) -> NoReturn:
    """`serve`, then end the process with status 0 (without C++ teardown); raises like `serve`."""
    raise NotImplementedError
