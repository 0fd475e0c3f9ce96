"""A real daemon as a process of its own, on an object store in memory.

`python -m tests.service.daemon_process DIRECTORY OPTIONS_AS_JSON`. SIGUSR1 lets held transfers
go; SIGUSR2 starts a child that inherits every descriptor that can be inherited, or stalls the
event loop if `stall` is set.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

from kvferry_server.adapters.clock import MonotonicClock
from kvferry_server.adapters.hardening import LoopWatchdog, abort, forbid_dumps
from kvferry_server.adapters.shm import SharedMemoryMapper
from kvferry_server.core.errors import KvferryError
from kvferry_server.core.types import EngineSettings
from kvferry_server.service.server import Daemon, Ports, ServerSettings, run

from .fakes import MemoryStore


def main() -> None:
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    logging.basicConfig(level="INFO", format="%(message)s")
    store = MemoryStore()
    store.hold = options.get("hold", False)
    if options.get("hold_preflight", False):
        store.preflight_gate.clear()
    watchdog = LoopWatchdog(options.get("stall_limit", 60.0), check_seconds=0.1)
    forbid_dumps()

    def ports() -> Ports:
        return Ports(store, SharedMemoryMapper(), MonotonicClock(), abort, watchdog.beat)

    def on_signal() -> None:
        if options.get("stall"):
            time.sleep(options["stall"])
        else:
            child = subprocess.Popen(["sleep", "300"], close_fds=False)
            print(f"child {child.pid}", flush=True)  # noqa: T201 -- for the test

    def started(_daemon: Daemon) -> None:
        watchdog.start()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, store.release)
        loop.add_signal_handler(signal.SIGUSR2, on_signal)
        print("started", flush=True)  # noqa: T201 -- for the test

    try:
        run(
            ports,
            EngineSettings(**options.get("engine", {})),
            ServerSettings(socket_dir=directory, **options.get("server", {})),
            started,
        )
    except KvferryError as error:
        raise SystemExit(error.message) from error


if __name__ == "__main__":
    main()
