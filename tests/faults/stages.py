"""Brings a job to one of its stages and holds it there: queued, storing, loading, not fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fault_server import Fault

from .engine_process import EngineProcess
from .rig import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rig import Engine, Scenario

CHUNKS = "p/faults/*"


def queued(s: Scenario, engine: Engine | EngineProcess) -> Callable[[], None]:
    """More stores than run at once, all of them stuck: the rest is queued."""
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, hang="start"))
    engine.store(8)
    engine.store(8)
    wait_for(lambda: s.info().queued_store_chunks and s.info().active_store_chunks, "a queue")
    info = s.info()
    s.prove(True, f"{info.queued_store_chunks} chunks queued, {info.active_store_chunks} active")
    return lambda: s.stub.remove(rule)


def storing(s: Scenario, engine: Engine | EngineProcess) -> Callable[[], None]:
    """Stores whose answer does not come."""
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, hang="start"))
    engine.store(3)
    wait_for(lambda: len(s.stub.requests("PUT", CHUNKS)) == 3, "3 PUT")
    s.prove(s.info().active_store_chunks == 3, "3 chunks storing")
    return lambda: s.stub.remove(rule)


def loading(s: Scenario, engine: Engine | EngineProcess) -> Callable[[], None]:
    """Loads whose body stops half-way."""
    keys = engine.store(3)
    engine.settle()
    rule = s.stub.add(Fault(method="GET", key=CHUNKS, hang="body"))
    engine.load(keys)
    wait_for(lambda: s.stub.counters().in_flight == 3, "3 GET")
    s.prove(s.info().active_load_chunks == 3, "3 chunks loading")
    return lambda: s.stub.remove(rule)


def not_fetched(s: Scenario, engine: EngineProcess) -> None:
    """A store is over, and its engine, frozen, has not acknowledged it."""
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, hang="start"))
    engine.store(3)
    wait_for(lambda: len(s.stub.requests("PUT", CHUNKS)) == 3, "3 PUT")
    engine.freeze()
    wait_for(engine.frozen, "a frozen engine")
    s.stub.remove(rule)
    wait_for(lambda: any(job.finished_chunks == 3 for job in s.daemon.jobs()), "a finished job")
    s.prove(engine.frozen(), "3 chunks finished, their job not acknowledged")


STAGES = {"queued": queued, "storing": storing, "loading": loading}
