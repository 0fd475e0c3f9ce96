"""Faults between daemon and store: the network, and real servers that die."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvferry_client import Outcome
from tests.support.processes import listens

from .catalogue import fault
from .rig import wait_for
from .s3_faults import LOADED, STORED, UNAVAILABLE, expect

if TYPE_CHECKING:
    from .rig import Scenario

NETWORK, SERVER = "Network", "Real S3 server"
FAILED = (UNAVAILABLE, Outcome.SHED, Outcome.EXPIRED, Outcome.DENIED)


@fault("F60", NETWORK, "every connection cut, new ones reset", store="stub")
def cut(s: Scenario) -> None:
    """Failed or shed, never a hang; back as soon as the network is."""
    keys = s.engine.stored(4)
    s.proxy.cut()
    s.engine.store(4)
    s.engine.load(keys)
    expect(s.engine.settle(), *FAILED)
    s.prove(s.proxy.counters.refused, f"{s.proxy.counters.refused} connections reset")
    s.proxy.fine()
    s.over()


@fault("F61", NETWORK, "cut in the middle of transfers", store="stub")
def cut_under_way(s: Scenario) -> None:
    """Retried on new connections; half a body is never taken for a chunk."""
    keys = s.engine.stored(4)
    s.proxy.slow(bytes_per_second=100_000)
    s.engine.store(4)
    s.engine.load(keys)
    wait_for(lambda: s.proxy.counters.delayed_pieces > 8, "slow pieces")
    before = s.proxy.counters.reset
    s.proxy.reset_connections()
    s.over()
    s.prove(s.proxy.counters.reset > before, f"{s.proxy.counters.reset - before} connections reset")
    expect(s.engine.settle(), STORED, LOADED)


@fault("F62", NETWORK, "slow: 100 kB/s a connection, 20 ms more a piece", store="stub")
def slow(s: Scenario) -> None:
    """Everything arrives, only later."""
    keys = s.engine.stored(4)
    s.proxy.slow(delay_seconds=0.02, bytes_per_second=100_000)
    began = time.monotonic()
    s.engine.store(4)
    s.engine.load(keys)
    expect(s.engine.settle(), STORED, LOADED)
    seconds = time.monotonic() - began
    s.prove(s.proxy.counters.delayed_pieces >= 30, f"{s.proxy.counters.delayed_pieces} pieces late")
    s.prove(seconds > 0.5, "64 KiB took more than 0.5 s")
    s.proxy.fine()
    s.over()


@fault("F63", NETWORK, "packets get lost both ways, nothing is closed", store="stub")
def silent(s: Scenario) -> None:
    """Fenced until the SDK's timeouts end the transfers; failed, then back."""
    keys = s.engine.stored(4)
    s.proxy.silent()
    s.engine.load(keys)
    expect(s.engine.settle(), *FAILED)
    s.prove(s.proxy.counters.swallowed_bytes, f"{s.proxy.counters.swallowed_bytes} bytes swallowed")
    s.proxy.fine()
    s.over()


@fault("F64", NETWORK, "half-open sockets: the peer forgot the pooled connections", store="stub")
def half_open(s: Scenario) -> None:
    """Those end by their timeout, and new ones are made: retried and loaded, or failed."""
    keys = s.engine.stored(4)
    wait_for(lambda: s.proxy.open_connections, "pooled connections")
    count = s.proxy.open_connections
    s.proxy.forget_peers()
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED, *FAILED)
    s.prove(s.proxy.counters.swallowed_bytes, f"{count} connections went silent, bytes were lost")
    s.over()


def server_killed(s: Scenario) -> None:
    """Kill it in the middle of transfers and restart it."""
    keys = s.engine.stored(8)
    [pid] = s.server.pids
    s.server.freeze()
    for _ in range(4):
        s.engine.store(4)
        s.engine.load(keys[:4])
    wait_for(lambda: s.info().active_chunks, "transfers under way")
    s.prove(True, f"{s.info().active_chunks} chunks in transfer")
    s.server.kill()
    s.prove(not s.server.pids and not listens(s.server.port), "the server was killed, port closed")
    s.engine.store(4)
    s.engine.load(keys)
    expect(s.engine.settle(), STORED, LOADED, *FAILED)
    s.server.start()
    s.over()
    s.prove(s.server.pids != [pid], "another server process on the same port")


@fault(
    "F65", SERVER, "localbucket killed and restarted under traffic", store="localbucket", gate=True
)
def localbucket_killed(s: Scenario) -> None:
    """Jobs fail or succeed, none hangs; every object read afterwards is right."""
    server_killed(s)


@fault("F66", SERVER, "SeaweedFS killed and restarted under traffic", store="seaweedfs")
def seaweedfs_killed(s: Scenario) -> None:
    """Jobs fail or succeed, none hangs; every object read afterwards is right."""
    server_killed(s)


@fault("F67", SERVER, "rclone killed and restarted under traffic", store="rclone")
def rclone_killed(s: Scenario) -> None:
    """Jobs fail or succeed, none hangs; every object that a load accepts is right."""
    server_killed(s)


@fault("F68", SERVER, "SeaweedFS frozen for 5 s under traffic", store="seaweedfs")
def seaweedfs_frozen(s: Scenario) -> None:
    """Jobs wait, fail or succeed; nothing is wrong afterwards."""
    keys = s.engine.stored(8)
    s.server.freeze()
    s.engine.store(4)
    s.engine.load(keys)
    time.sleep(5.0)
    s.prove(len(s.daemon.jobs()) or s.engine.take(), "the server was stopped for 5 s")
    s.server.thaw()
    s.over()
    expect(s.engine.settle(), STORED, LOADED, *FAILED)
