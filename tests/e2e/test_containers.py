"""The daemon in a container of its own, without vLLM: what the proof with vLLM rests upon."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvferry_client.client import Client
from kvferry_client.types import Outcome

from . import inspection
from .pod_client import PodClient
from .sandbox import DAEMON_UID

SLOTS, SLOT_BYTES = 4, 65_536
KEYS = [bytes([number]) * 36 for number in range(SLOTS)]
WAIT_SECONDS = 20.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the daemon gets another uid"),
    pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap"),
]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir()
    os.chown(directory, DAEMON_UID, DAEMON_UID)
    return directory


@pytest.fixture
def pod(shared: Path, tmp_path: Path) -> Iterator[PodClient]:
    with PodClient(shared, tmp_path / "pod.log", store="localbucket") as running:
        yield running


@contextmanager
def client_of(shared: Path) -> Iterator[tuple[Client, memoryview]]:
    descriptor = os.memfd_create("region")
    os.ftruncate(descriptor, SLOTS * SLOT_BYTES)
    memory = mmap.mmap(descriptor, SLOTS * SLOT_BYTES)
    os.close(descriptor)
    with memoryview(memory) as flat, flat.cast("B", (SLOTS, SLOT_BYTES)) as region:
        client = Client(shared / "sockets", region, namespace="model_r0", engine_id="e2e")
        yield client, flat
        assert client.close()


def outcomes(client: Client) -> set[Outcome]:
    assert client.wait_results(WAIT_SECONDS)
    [result] = client.take_results()
    assert len(result.outcomes) == SLOTS
    return set(result.outcomes)


def test_chunks_go_out_of_the_container_and_come_back(pod: PodClient, shared: Path):
    pod.ask("start_daemon", verify="when-known")
    daemon, own = pod.daemon_pid(), os.getpid()
    assert inspection.real_uid(daemon) == DAEMON_UID
    mine, theirs = inspection.namespaces(own), inspection.namespaces(daemon)
    assert not set(mine.values()) & set(theirs.values())
    with client_of(shared) as (client, memory):
        assert client.wait_attached(WAIT_SECONDS)
        payload = os.urandom(len(memory))
        memory[:] = payload
        client.store(KEYS, range(SLOTS))
        assert outcomes(client) == {Outcome.STORED}
        memory[:] = bytes(len(memory))
        client.load(KEYS, range(SLOTS))
        assert outcomes(client) == {Outcome.LOADED}
        assert bytes(memory) == payload


def test_zeroed_objects_are_corrupt_unless_nothing_is_verified(pod: PodClient, shared: Path):
    pod.ask("start_daemon", verify="when-known")
    with client_of(shared) as (client, memory):
        assert client.wait_attached(WAIT_SECONDS)
        memory[:] = os.urandom(len(memory))
        client.store(KEYS, range(SLOTS))
        assert outcomes(client) == {Outcome.STORED}
        assert pod.ask("zero_objects") == {"overwritten": SLOTS}
        client.load(KEYS, range(SLOTS))
        assert outcomes(client) == {Outcome.CORRUPT}
        assert pod.ask("info")["counters"]["chunks_load_corrupt"] == SLOTS
    pod.ask("stop_daemon")
    pod.ask("start_daemon", verify="off")
    with client_of(shared) as (client, memory):
        assert client.wait_attached(WAIT_SECONDS)
        memory[:] = os.urandom(len(memory))
        client.load(KEYS, range(SLOTS))
        assert outcomes(client) == {Outcome.LOADED}
        assert not any(memory)


def test_a_peer_of_another_user_namespace_needs_the_switch(pod: PodClient, shared: Path):
    pod.ask("start_daemon", verify="when-known", allow_overflow=False)
    with client_of(shared) as (client, _memory):
        assert not client.wait_attached(1.0)
        assert "allow_overflow_uid" in client.last_error
