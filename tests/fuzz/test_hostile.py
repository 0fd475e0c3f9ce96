"""A hostile client: the daemon lives, answers in defined ways, and others' transfers stay right."""

from __future__ import annotations

import contextlib
import inspect
import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import coverage
import grpc
import pytest

from kvferry.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from kvferry_server.core.types import EngineSettings
from kvferry_server.service import codec, lease
from tests.service.harness import GUARD_SECONDS, SLOT, Client, World, running, wait_for

from .leases import LeaseAttack
from .rpcs import RpcAttack, Tally

ENGINE = EngineSettings(
    max_wait_seconds=0.02, lookup_seconds=0.05, max_keys_per_request=64, max_jobs_per_request=16
)
BATCH = 1000
KEYS = [b"%04d" % number + bytes(32) for number in range(40)]
STORED, LOADED = types_pb2.CHUNK_OUTCOME_STORED, types_pb2.CHUNK_OUTCOME_LOADED


class Bystander:
    """Another session: stores, loads back, compares, all the time."""

    def __init__(self, client: Client) -> None:
        self.rounds = 0
        self.problems: list[str] = []
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(GUARD_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._round()
        except (grpc.RpcError, AssertionError) as error:
            self.problems.append(repr(error))

    def _round(self) -> None:
        self.rounds += 1
        number = self.rounds
        data = secrets.token_bytes(4 * SLOT)
        keys = [b"bystander %08d %d" % (number, index) + bytes(4) for index in range(4)]
        memory = self._client.region.memory
        memory[: len(data)] = data
        self._client.store(2 * number - 1, keys, range(4))
        stored = self._client.outcomes(2 * number - 1)
        memory[4 * SLOT :] = bytes(4 * SLOT)
        self._client.load(2 * number, keys, range(4, 8))
        loaded = self._client.outcomes(2 * number)
        if stored != [STORED] * 4 or loaded != [LOADED] * 4 or memory[4 * SLOT :] != data:
            self.problems.append(f"round {number}: {stored} {loaded}")
        time.sleep(0.01)


@contextmanager
def world_under_attack() -> Iterator[tuple[World, Bystander]]:
    parent = Path(tempfile.mkdtemp(prefix="kvf-"))
    try:
        settings = {"handshake_seconds": 0.2, "max_pending_handshakes": 8}
        with running(parent / "s", ENGINE, **settings) as world:
            bystander = Bystander(world.attach())
            try:
                yield world, bystander
            finally:
                bystander.stop()
    finally:
        logging.getLogger("kvferry_server").setLevel(logging.NOTSET)
        shutil.rmtree(parent)


def attack_rpcs(world: World, count: int, seed: int) -> Tally:
    own = world.attach()
    likely = {
        "job_id": list(range(1, 4000)),
        "slots": list(range(9)),
        "keys": KEYS,
        "ack_seq": [0],
    }
    attack = RpcAttack(world.channel(), seed, own.ref, likely)
    assert set(attack.methods) >= {"AttachRegion", "Lookup", "Store", "Load", "Poll", "Drain"}
    for sent in range(0, count, BATCH):
        attack.send(min(BATCH, count - sent))
        own.poll(0)
        if sent % (20 * BATCH) == 0:
            with contextlib.suppress(grpc.RpcError):  # what runs is awaited anyway
                own.detach()
            own = world.attach()
            attack.session = own.ref
    return attack.tally


def attack_admin(world: World, count: int, seed: int) -> Tally:
    """Admin is trusted, but not to be right. Pause is tried alone, since it stops transfers."""
    left_out = frozenset({"Pause"})
    likely = {"session_id": [""], "level": ["debug", "info", "warning"]}
    attack = RpcAttack(world.channel("admin.sock"), seed, None, likely, left_out)
    assert set(attack.methods) >= {"GetServerInfo", "ListJobs", "CheckStore", "SetLogLevel"}
    attack.send(count)
    return attack.tally


def attack_pause(world: World, count: int, seed: int) -> Tally:
    admin = world.channel("admin.sock")
    others = frozenset(RpcAttack(admin, seed).methods) - {"Pause"}
    attack = RpcAttack(admin, seed, None, {}, others)
    attack.send(count)
    stub = admin_pb2_grpc.AdminServiceStub(admin)
    stub.Resume(admin_pb2.ResumeRequest(stores=True, loads=True), timeout=GUARD_SECONDS)
    return attack.tally


def attack_all(rpcs: int, admins: int, leases: int, seed: int) -> dict[str, object]:
    """Run everything; returns the figures."""
    began = time.monotonic()
    with world_under_attack() as (world, bystander):
        calls = attack_rpcs(world, rpcs, seed)
        admin = attack_admin(world, admins, seed + 1)
        handshakes = LeaseAttack(world.path("lease.sock"), seed + 2)
        try:
            handshakes.send(leases)
        finally:
            handshakes.close()
        rounds = bystander.rounds
        assert bystander.problems == []
        bystander.stop()
        pauses = attack_pause(world, admins // 10, seed + 3)
        tallies = (calls, admin, pauses)
        assert [text for tally in tallies for text in tally.undefined][:5] == []
        assert handshakes.undefined[:5] == []
        assert world.aborts == []
        last = world.attach()
        last.store(1, [KEYS[0][:-1] + b"\1"], [0])
        assert last.outcomes(1) == [STORED]
        wait_for(lambda: len(world.daemon._sessions) <= 3)
        with world.connect(), contextlib.suppress(OSError):
            world.stop()
    inputs = sum(tally.inputs for tally in tallies) + leases
    return {
        "inputs": inputs,
        "authenticated": calls.authenticated / inputs,
        "seconds": round(time.monotonic() - began),
        "bystander rounds": rounds,
        "codes": dict(sum((tally.codes for tally in tallies), start=type(calls.codes)())),
        "handshakes": dict(handshakes.answers),
    }


def test_a_hostile_client_in_short():
    figures = attack_all(rpcs=4000, admins=400, leases=400, seed=1)
    assert figures["authenticated"] > 0.2
    assert figures["bystander rounds"] > 3
    assert {"attached", "BAD_FRAME"} <= set(figures["handshakes"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hostile_client_with_200_000_inputs():
    """Coverage is that of the first part alone, since measuring it slows everything down."""
    files = [inspect.getsourcefile(codec), inspect.getsourcefile(lease)]
    measured = coverage.Coverage(branch=True, include=files, data_file=None)
    measured.start()
    try:
        first = attack_all(rpcs=12_000, admins=1_000, leases=3_000, seed=2)
    finally:
        measured.stop()
    covered = {Path(file).name: _branches_covered(measured, file) for file in files}
    rest = attack_all(rpcs=175_000, admins=8_000, leases=8_000, seed=3)
    print(first, covered, rest, sep="\n")  # noqa: T201 - the figures of `make fuzz`
    assert first["inputs"] + rest["inputs"] >= 200_000
    assert min(first["authenticated"], rest["authenticated"]) > 0.2
    assert min(covered.values()) >= 0.9


def _branches_covered(measured: coverage.Coverage, file: str) -> float:
    numbers = measured._analyze(file).numbers
    return numbers.n_executed_branches / numbers.n_branches
