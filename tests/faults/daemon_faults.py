"""Faults of the daemon: killed, told to end, frozen, at each stage of a job."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from kvferry_client import Outcome, Presence
from tests.support.fault_server import Fault

from .catalogue import fault
from .engine_process import EngineProcess
from .rig import wait_for
from .s3_faults import CHUNKS, LOADED, STORED, expect
from .stages import STAGES, not_fetched

if TYPE_CHECKING:
    from .rig import Scenario

KIND = "Daemon"
LOST, CANCELLED = Outcome.LOST, Outcome.CANCELLED
FROZEN_SECONDS = 2.0


def killed(s: Scenario, stage: str) -> None:
    """SIGKILL; everything open is lost at once and once; a new daemon goes on."""
    release = STAGES[stage](s, s.engine)
    status = s.daemon.kill()
    s.prove(status == -signal.SIGKILL, "the daemon ended by SIGKILL")
    expect(s.engine.settle(), LOST)
    release()
    s.over()
    s.daemon.start()


@fault("F30", KIND, "SIGKILL while chunks are queued", store="stub")
def kill_queued(s: Scenario) -> None:
    """Each job is reported once, as lost, and only after the lease's end."""
    killed(s, "queued")


@fault("F31", KIND, "SIGKILL while chunks are being stored", store="stub", gate=True)
def kill_storing(s: Scenario) -> None:
    """Each job is reported once, as lost; no object holds other bytes."""
    killed(s, "storing")


@fault("F32", KIND, "SIGKILL while chunks are being loaded", store="stub")
def kill_loading(s: Scenario) -> None:
    """Each job is reported once, as lost; nothing writes into the slots afterwards."""
    killed(s, "loading")


@fault("F33", KIND, "SIGKILL after a job ended, before its engine knows", store="stub")
def kill_not_fetched(s: Scenario) -> None:
    """Reported once, as stored (the answer was on its way) or lost."""
    engine = EngineProcess(s)
    not_fetched(s, engine)
    s.prove(s.daemon.kill() == -signal.SIGKILL, "the daemon ended by SIGKILL")
    s.over()
    s.daemon.start()
    engine.thaw()
    if set(engine.settle()) - {"LOST", "STORED"}:
        raise AssertionError("the job must end as lost or stored")
    engine.finish()


def told_to_end(s: Scenario, stage: str, *allowed: Outcome) -> None:
    """SIGTERM; running transfers are awaited, what is queued is cancelled, the status is 0."""
    release = STAGES[stage](s, s.engine)
    s.daemon.running.signal(signal.SIGTERM)
    time.sleep(1.0)
    s.prove(s.daemon.running.running, "the daemon awaits its transfers after SIGTERM")
    release()
    expect(s.engine.settle(), *allowed)
    status = s.daemon.ended()
    s.prove(status == 0, "the daemon ended with status 0")
    s.over()
    s.daemon.start()


@fault("F34", KIND, "SIGTERM while chunks are queued", store="stub")
def end_queued(s: Scenario) -> None:
    """The queued are cancelled, the active finish; each job is reported once."""
    told_to_end(s, "queued", STORED, CANCELLED)


@fault("F35", KIND, "SIGTERM while chunks are being stored", store="stub")
def end_storing(s: Scenario) -> None:
    """They finish and are reported as stored."""
    told_to_end(s, "storing", STORED)


@fault("F36", KIND, "SIGTERM while chunks are being loaded", store="stub")
def end_loading(s: Scenario) -> None:
    """They finish and are reported as loaded."""
    told_to_end(s, "loading", LOADED)


@fault("F37", KIND, "SIGTERM after a job ended, before its engine knows", store="stub")
def end_not_fetched(s: Scenario) -> None:
    """The daemon does not wait for ever; the job is reported once."""
    engine = EngineProcess(s)
    not_fetched(s, engine)
    s.daemon.running.signal(signal.SIGTERM)
    s.prove(s.daemon.ended(20) == 0, "the daemon ended with status 0")
    s.over()
    s.daemon.start()
    engine.thaw()
    if set(engine.settle()) - {"LOST", "STORED"}:
        raise AssertionError("the job must end as lost or stored")
    engine.finish()


def frozen(s: Scenario, stage: str, *allowed: Outcome) -> None:
    """SIGSTOP; nothing is reported, nothing is lost, lookups are misses; then it goes on."""
    release = STAGES[stage](s, s.engine)
    s.daemon.running.signal(signal.SIGSTOP)
    wait_for(lambda: s.daemon.state == "T", "a stopped daemon")
    release()
    time.sleep(FROZEN_SECONDS)
    early = s.engine.take()
    verdicts = s.engine.look_up(s.engine.new_keys(2))
    s.prove(s.daemon.state == "T" and not early, f"stopped for {FROZEN_SECONDS:g} s and longer")
    if set(verdicts) != {Presence.UNKNOWN}:
        raise AssertionError(f"a stopped daemon answered {verdicts}")
    s.daemon.running.signal(signal.SIGCONT)
    s.over()
    expect(s.engine.settle(), *allowed)


@fault("F38", KIND, "SIGSTOP while chunks are queued", store="stub")
def freeze_queued(s: Scenario) -> None:
    """Everything is reported once, as it really ended."""
    frozen(s, "queued", STORED, Outcome.EXPIRED, Outcome.SHED)


@fault("F39", KIND, "SIGSTOP while chunks are being stored", store="stub")
def freeze_storing(s: Scenario) -> None:
    """Everything is reported once, as it really ended."""
    frozen(s, "storing", STORED)


@fault("F40", KIND, "SIGSTOP while chunks are being loaded", store="stub", gate=True)
def freeze_loading(s: Scenario) -> None:
    """Everything is reported once, as it really ended."""
    frozen(s, "loading", LOADED)


@fault("F41", KIND, "SIGSTOP after a job ended, before its engine knows", store="stub")
def freeze_not_fetched(s: Scenario) -> None:
    """The result waits; the job is reported once, as stored."""
    engine = EngineProcess(s)
    not_fetched(s, engine)
    s.daemon.running.signal(signal.SIGSTOP)
    wait_for(lambda: s.daemon.state == "T", "a stopped daemon")
    engine.thaw()
    time.sleep(FROZEN_SECONDS)
    s.prove(s.daemon.state == "T", f"stopped for {FROZEN_SECONDS:g} s")
    s.daemon.running.signal(signal.SIGCONT)
    s.over()
    if engine.settle() != ["STORED"] * 3:
        raise AssertionError("the job must end as stored")
    engine.finish()


@fault("F42", KIND, "SIGSTOP for longer than the hard deadline", store="stub", started=False)
def freeze_long(s: Scenario) -> None:
    """The deadline counts time in which the daemon ran: it does not end itself."""
    s.start(settings={"timeouts": {"transfer_seconds": 4.0, "hard_deadline_seconds": 5.0}})
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, hang="start"))
    s.engine.store(2)
    wait_for(lambda: s.info().active_store_chunks == 2, "2 chunks storing")
    s.daemon.running.signal(signal.SIGSTOP)
    time.sleep(7.0)
    s.prove(s.daemon.state == "T", "stopped for 7 s, the hard deadline is 5 s")
    s.stub.remove(rule)
    s.daemon.running.signal(signal.SIGCONT)
    s.over()
    expect(s.engine.settle(), STORED)
    s.prove(len(s.daemon.pids) == 1 and s.daemon.running.running, "the same daemon goes on")


@fault("F43", KIND, "a transfer that never ends", store="stub", started=False)
def never_ends(s: Scenario) -> None:
    """Past the hard deadline the daemon ends itself: only so is the slot released."""
    s.start(settings={"timeouts": {"transfer_seconds": 2.0, "hard_deadline_seconds": 4.0}})
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, hang="start"))
    s.engine.store(2)
    wait_for(lambda: s.info().active_store_chunks == 2, "2 chunks storing")
    s.prove(not s.engine.client.wait_results(3.0), "2 PUT hung beyond transfer_seconds")
    status = s.daemon.ended(30)
    s.prove(status != 0, f"the daemon ended itself with status {status}")
    expect(s.engine.settle(), LOST)
    s.stub.remove(rule)
    s.over()
    s.daemon.start()
