"""Faults of the engine: killed at each stage of a job, or frozen."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from .catalogue import fault
from .engine_process import EngineProcess
from .rig import wait_for
from .s3_faults import STORED, expect
from .stages import STAGES, not_fetched

if TYPE_CHECKING:
    from .rig import Scenario

KIND = "Engine"


def killed(s: Scenario, stage: str) -> None:
    """The daemon keeps the dead engine's region until its transfers ended, then lets go of it."""
    victim = EngineProcess(s)
    release = STAGES[stage](s, victim)
    if victim.kill() != -signal.SIGKILL:
        raise AssertionError("the engine did not end by SIGKILL")
    wait_for(lambda: s.info().dead_engine_bytes, "a region whose engine is gone")
    inode = victim.region.inode
    s.prove(s.daemon.maps(inode), "the engine was killed, its transfers still run, region mapped")
    release()
    s.over()
    wait_for(lambda: not s.daemon.maps(inode), "the dead engine's region to be unmapped")
    s.engine.store(4)
    expect(s.engine.settle(), STORED)


@fault("F50", KIND, "SIGKILL while its chunks are queued", store="stub")
def kill_queued(s: Scenario) -> None:
    """What is queued is dropped, what is active awaited; other engines notice nothing."""
    killed(s, "queued")


@fault("F51", KIND, "SIGKILL while its chunks are being stored", store="stub", gate=True)
def kill_storing(s: Scenario) -> None:
    """The objects hold the right bytes; other engines notice nothing."""
    killed(s, "storing")


@fault("F52", KIND, "SIGKILL while its chunks are being loaded", store="stub")
def kill_loading(s: Scenario) -> None:
    """The region goes once the loads ended; other engines notice nothing."""
    killed(s, "loading")


@fault("F53", KIND, "SIGKILL after its job ended, before it knows", store="stub")
def kill_not_fetched(s: Scenario) -> None:
    """The result goes with the session."""
    victim = EngineProcess(s)
    not_fetched(s, victim)
    inode = victim.region.inode
    s.prove(victim.kill() == -signal.SIGKILL, "the engine ended by SIGKILL")
    s.over()
    wait_for(lambda: not s.daemon.maps(inode), "the dead engine's region to be unmapped")
    wait_for(lambda: not s.daemon.jobs(), "no job without an engine")


@fault("F54", KIND, "SIGSTOP for 3 s with jobs open", store="stub")
def frozen(s: Scenario) -> None:
    """Its results wait, other engines go on; then each job is reported once."""
    engine = EngineProcess(s)
    release = STAGES["storing"](s, engine)
    engine.freeze()
    wait_for(engine.frozen, "a frozen engine")
    release()
    s.engine.store(4)
    expect(s.engine.settle(), STORED)
    time.sleep(3.0)
    s.prove(engine.frozen(), "the engine was stopped for 3 s")
    engine.thaw()
    s.over()
    if engine.settle() != ["STORED"] * 3:
        raise AssertionError("the job must end as stored")
    engine.finish()
