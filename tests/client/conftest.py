"""Regions, clients and scripted daemons for the client's tests."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvferry_client import Client, ClientState, JobResult, LookupReply

from .scripted import ScriptedDaemon

SLOTS, STRIDE = 64, 4096


class Region:
    """An anonymous tmpfs file, mapped: what the engine owns."""

    def __init__(self, slots: int = SLOTS, stride: int = STRIDE) -> None:
        self.fd = os.memfd_create("kvferry-test")
        os.ftruncate(self.fd, slots * stride)
        self.map = mmap.mmap(self.fd, slots * stride)
        self.view = memoryview(self.map).cast("B", (slots, stride))
        self.stride = stride

    def write(self, slot: int, byte: int) -> None:
        self.map[slot * self.stride : (slot + 1) * self.stride] = bytes([byte]) * self.stride

    def read(self, slot: int) -> bytes:
        return self.map[slot * self.stride : (slot + 1) * self.stride]

    def close(self) -> None:
        self.view.release()
        self.map.close()
        os.close(self.fd)


def eventually(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait until `condition` holds; fail after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        time.sleep(0.01)


def results(client: Client, count: int, timeout: float = 10.0) -> list[JobResult]:
    """Wait for `count` results; fail if more or fewer come."""
    got: list[JobResult] = []
    eventually(lambda: got.extend(client.take_results()) or len(got) >= count, timeout)
    assert len(got) == count
    return got


def replies(client: Client, count: int, timeout: float = 10.0) -> list[LookupReply]:
    """Wait for `count` lookup replies."""
    got: list[LookupReply] = []
    eventually(lambda: got.extend(client.take_lookups()) or len(got) >= count, timeout)
    assert len(got) == count
    return got


def key(number: int) -> bytes:
    """A key as vLLM makes them: a hash and a group index."""
    return number.to_bytes(32, "big") + bytes(4)


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="kvf") as name:
        yield Path(name)


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region()
    yield made
    made.close()


@pytest.fixture
def clients(region: Region) -> Iterator[list[Client]]:
    """The clients of a test; checks at the very end that all of them let go."""
    del region
    made: list[Client] = []
    yield made
    for client in made:
        client.close(timeout_s=0)
    eventually(lambda: all(client.state is ClientState.CLOSED for client in made))


@pytest.fixture
def daemon(socket_dir: Path, clients: list[Client]) -> Iterator[ScriptedDaemon]:
    del clients
    made = ScriptedDaemon(socket_dir).start()
    yield made
    made.release()
    made.die()


@pytest.fixture
def make_client(socket_dir: Path, region: Region, clients: list[Client]) -> Callable[..., Client]:
    """Makes clients of the test's region and directory."""

    def make(**changes: object) -> Client:
        arguments: dict[str, object] = {"namespace": "ns", "engine_id": "engine", **changes}
        client = Client(socket_dir, region.view, **arguments)  # type: ignore[arg-type]
        client.start()
        clients.append(client)
        return client

    return make


@pytest.fixture
def client(daemon: ScriptedDaemon, make_client: Callable[..., Client]) -> Client:
    """A client attached to the scripted daemon."""
    del daemon
    made = make_client()
    assert made.wait_attached(10)
    return made
