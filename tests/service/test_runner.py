"""The runner around the real engine, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from kvferry_server.core.effects import JobFinished
from kvferry_server.core.engine import Engine
from kvferry_server.core.errors import NotFound
from kvferry_server.core.events import Capacity, StoreReadiness
from kvferry_server.core.ports import Region
from kvferry_server.core.types import (
    EngineSettings,
    JobKind,
    JobSpec,
    LookupGroup,
    Outcome,
    Presence,
    SessionSpec,
    TransferStatus,
)
from kvferry_server.service.runner import Runner

KEY = b"k" * 32 + b"\0\0\0\0"


class ManualClock:
    def __init__(self) -> None:
        self.time = 100.0

    def monotonic(self) -> float:
        return self.time


class RecordingStore:
    url = "recording://"
    max_active_chunks = 8

    def __init__(self) -> None:
        self.transfers: list[tuple[str, memoryview, Callable[[TransferStatus], None]]] = []
        self.probes: list[tuple[list[str], Callable]] = []
        self.broken = False

    def transfer(self, _kind, name, buffer, done) -> None:
        if self.broken:
            raise RuntimeError("out of handles")
        self.transfers.append((name, buffer, done))

    def probe(self, names, done) -> None:
        self.probes.append((list(names), done))


class ArrayRegion:
    ranges = ()
    mapped_bytes = 64

    def __init__(self) -> None:
        self.memory = bytearray(64)

    def slot(self, index: int) -> memoryview:
        return memoryview(self.memory)[index * 8 : index * 8 + 8]

    def close(self) -> None:
        self.memory.append(0)


class World:
    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.clock = ManualClock()
        self.store = RecordingStore()
        self.aborts: list[str] = []
        self.observed: list[object] = []
        self.quiet: list[str] = []
        self.region = ArrayRegion()
        self.runner = Runner(
            Engine(settings or EngineSettings()),
            self.store,
            self.clock,
            self.aborts.append,
            self.observed.append,
        )
        self.runner.send(Capacity(8))
        self.runner.send(StoreReadiness(ready=True))
        spec = SessionSpec("s", "engine", "space", 8, 8)
        self.runner.open_session(spec, cast("Region", self.region), lambda: self.quiet.append("s"))

    def submit(self, job_id: int = 1, kind: JobKind = JobKind.STORE) -> None:
        self.runner.submit("s", kind, (JobSpec(job_id, (KEY + bytes([job_id]),), (job_id,)),))


def run(body: Callable[[], object]) -> None:
    asyncio.run(cast("asyncio._CoroutineLike", body()))


def test_a_transfer_gets_the_slot_and_the_name_and_its_view_is_released():
    async def body() -> None:
        world = World()
        world.submit()
        name, view, done = world.store.transfers[0]
        assert name.startswith("space/")
        assert len(view) == 8
        await asyncio.to_thread(done, TransferStatus.OK)
        reply = await world.runner.poll("s", 0, 5)
        assert reply.results[0].outcomes == (Outcome.STORED,)
        with pytest.raises(ValueError, match="released"):
            view[0]
        assert isinstance(world.observed[0], JobFinished)

    run(body)


def test_ends_that_come_together_wake_the_loop_once():
    async def body() -> None:
        world = World()
        for number in range(1, 6):
            world.submit(number)
        wakes = []
        loop = asyncio.get_running_loop()
        inner = loop.call_soon_threadsafe
        world.runner._loop.call_soon_threadsafe = lambda *a: (wakes.append(1), inner(*a))
        for _name, _view, done in world.store.transfers:
            done(TransferStatus.OK)
        await world.runner.until(lambda: len(world.observed) == 5)
        assert wakes == [1]
        del world.runner._loop.call_soon_threadsafe

    run(body)


def test_a_quiet_session_is_reported_only_after_its_last_transfer():
    async def body() -> None:
        world = World()
        world.submit()
        world.runner.end_session("s")
        world.runner.end_session("s")
        assert world.quiet == []
        world.store.transfers[0][2](TransferStatus.OK)
        await world.runner.until(lambda: world.quiet)
        world.region.close()
        world.runner.end_session("s")
        with pytest.raises(NotFound):
            await world.runner.poll("s", 0, 0)

    run(body)


def test_a_port_that_raises_ends_the_process_rather_than_strand_a_slot():
    async def body() -> None:
        world = World()
        world.store.broken = True
        with pytest.raises(RuntimeError):
            world.submit()
        assert "out of handles" in world.aborts[0]

    run(body)


def test_J04_a_second_end_of_a_transfer_is_dropped_and_logged(caplog: pytest.LogCaptureFixture):
    async def body() -> None:
        world = World()
        world.submit()
        done = world.store.transfers[0][2]
        done(TransferStatus.OK)
        done(TransferStatus.UNAVAILABLE)
        await asyncio.sleep(0.05)
        reply = await world.runner.poll("s", 0, 0)
        assert [each.outcomes for each in reply.results] == [(Outcome.STORED,)]
        assert "ended twice" in caplog.text
        assert world.aborts == []

    run(body)


def test_the_timer_wakes_the_engine_though_events_keep_coming():
    async def body() -> None:
        world = World(EngineSettings(hard_deadline_seconds=2.0))
        world.submit()
        for _ in range(60):
            world.clock.time += 0.1
            world.runner.end_session("absent")
            world.runner.send(Capacity(8))
            await asyncio.sleep(0.01)
        assert "hard_deadline" in world.aborts[0]

    run(body)


def test_a_lookup_ends_at_its_deadline_by_the_timer():
    async def body() -> None:
        world = World()
        ask = world.runner.lookup("s", (LookupGroup((KEY,)),), 0.2)
        task = asyncio.get_running_loop().create_task(ask)
        await asyncio.sleep(0.05)
        assert len(world.store.probes) == 1
        world.clock.time += 0.3
        assert await task == ((Presence.UNKNOWN,),)
        world.store.probes[0][1]([Presence.PRESENT])
        await asyncio.sleep(0.05)
        assert await world.runner.lookup("s", (LookupGroup((KEY,)),), 1) == ((Presence.PRESENT,),)

    run(body)


def test_an_unreachable_store_fails_the_probe():
    async def body() -> None:
        world = World()
        ask = world.runner.lookup("s", (LookupGroup((KEY,)),), 30)
        task = asyncio.get_running_loop().create_task(ask)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(world.store.probes[0][1], None)
        assert await task == ((Presence.UNKNOWN,),)

    run(body)


def test_ends_after_the_close_are_dropped():
    async def body() -> tuple[World, Callable]:
        world = World()
        world.submit()
        world.runner.close()
        return world, world.store.transfers[0][2]

    world, done = asyncio.run(body())
    done(TransferStatus.OK)
    assert world.aborts == []


def test_an_end_the_engine_cannot_take_ends_the_process():
    async def body() -> None:
        world = World()
        ask = world.runner.lookup("s", (LookupGroup((KEY,)),), 0.05)
        task = asyncio.get_running_loop().create_task(ask)
        await asyncio.sleep(0.02)
        errors: list[dict] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, c: errors.append(c))
        world.store.probes[0][1]([Presence.PRESENT] * 2)
        await asyncio.sleep(0.02)
        assert "could not be taken in" in world.aborts[0]
        assert len(errors) == 1
        world.clock.time += 1
        await task

    run(body)
