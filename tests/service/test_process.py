"""A daemon as a process: signals, kills, two of them, and what the lease shows of it all."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import offload_pb2_grpc, types_pb2

from .harness import (
    GUARD_SECONDS,
    SLOT,
    Client,
    Region,
    attach_request,
    connect,
    frame,
    receive_reply,
    send_frame,
    wait_for,
)

ROOT = Path(__file__).parents[2]
KEY = b"k" * 32 + b"\0\0\0\0"
ABORTED = 70
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")


class Process:
    """The daemon's process, with plain clients for it."""

    def __init__(self, directory: Path, command: list[str]) -> None:
        self.directory = directory
        self._clients: list[tuple[Client, grpc.Channel]] = []
        self.popen = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def started(self) -> None:
        assert self.line() == "started", self.popen.communicate()

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def exit_status(self) -> int:
        return self.popen.wait(GUARD_SECONDS)

    def attach(self, region: Region | None = None) -> Client:
        region = region or Region.make()
        connection = connect(str(self.directory / "lease.sock"))
        send_frame(connection, frame(attach_request()), [region.descriptor])
        reply = receive_reply(connection)
        channel = grpc.insecure_channel(f"unix:{self.directory / 'kvferry.sock'}")
        stub = offload_pb2_grpc.OffloadServiceStub(channel)
        client = Client(stub, reply.attached.session, reply.attached, connection, region)
        self._clients.append((client, channel))
        wait_for(lambda: client.lookup([b"readiness"]) == [2])
        return client

    def close(self) -> None:
        for client, channel in self._clients:
            channel.close()
            client.connection.close()
            client.region.close()
        self.popen.kill()
        self.popen.communicate()


@contextmanager
def process(directory: Path, *prefix: str, wait: bool = True, **options) -> Iterator[Process]:
    module = [sys.executable, "-m", "tests.service.daemon_process"]
    found = Process(directory, [*prefix, *module, str(directory), json.dumps(options)])
    try:
        if wait:
            found.started()
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly(socket_dir: Path, number: signal.Signals):
    with process(socket_dir) as daemon:
        client = daemon.attach()
        daemon.popen.send_signal(number)
        assert daemon.exit_status() == 0
        assert client.at_end_of_file(GUARD_SECONDS)
        assert [p.name for p in socket_dir.iterdir()] == ["kvferry.lock"]


@as_root
def test_sigterm_works_for_process_1(socket_dir: Path):
    with process(socket_dir, "unshare", "--pid", "--fork", "--kill-child") as daemon:
        children = Path(f"/proc/{daemon.popen.pid}/task/{daemon.popen.pid}/children")
        os.kill(int(children.read_text(encoding="ascii").split()[0]), signal.SIGTERM)
        assert daemon.exit_status() == 0
        assert [p.name for p in socket_dir.iterdir()] == ["kvferry.lock"]


def test_O01_sigterm_works_while_the_store_is_black_holed(socket_dir: Path):
    with process(socket_dir, hold_preflight=True) as daemon:
        daemon.popen.send_signal(signal.SIGTERM)
        assert daemon.exit_status() == 0


def test_sigterm_finishes_what_runs(socket_dir: Path):
    with process(socket_dir, hold=True) as daemon:
        client = daemon.attach()
        client.region.fill(0, 8)
        client.store(1, [KEY], [0])
        daemon.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: not (socket_dir / "kvferry.sock").exists())
        assert not client.at_end_of_file(0.5)
        daemon.popen.send_signal(signal.SIGUSR1)
        assert client.outcomes(1) == [1]
        assert daemon.exit_status() == 0
        assert client.at_end_of_file(GUARD_SECONDS)


def test_beyond_the_shutdown_limit_the_lease_ends_with_the_process_and_its_lock(socket_dir: Path):
    with process(socket_dir, hold=True, server={"shutdown_seconds": 1.0}) as daemon:
        client = daemon.attach()
        client.store(1, [KEY], [0])
        daemon.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: not (socket_dir / "kvferry.sock").exists())
        with (socket_dir / "kvferry.lock").open("rb") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert client.at_end_of_file(GUARD_SECONDS)
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert daemon.exit_status() == ABORTED
        assert "shutdown_seconds 1" in daemon.popen.stderr.read()
    with process(socket_dir) as third:
        third.attach()


def test_a_second_signal_ends_at_once(socket_dir: Path):
    with process(socket_dir, hold=True) as daemon:
        client = daemon.attach()
        client.store(1, [KEY], [0])
        daemon.popen.send_signal(signal.SIGTERM)
        daemon.popen.send_signal(signal.SIGINT)
        assert not client.at_end_of_file(1.5)
        daemon.popen.send_signal(signal.SIGINT)
        assert daemon.exit_status() == ABORTED
        assert client.at_end_of_file(GUARD_SECONDS)


def test_a_child_that_inherits_every_descriptor_does_not_delay_the_leases_end(socket_dir: Path):
    with process(socket_dir) as daemon:
        client = daemon.attach()
        for path in Path(f"/proc/{daemon.popen.pid}/fd").iterdir():
            number = path.name
            if int(number) > 2:
                text = Path(f"/proc/{daemon.popen.pid}/fdinfo/{number}").read_text("ascii")
                flags = int(text.split("flags:")[1].split()[0], 8)
                assert flags & os.O_CLOEXEC, number
        daemon.popen.send_signal(signal.SIGUSR2)
        child = int(daemon.line().removeprefix("child "))
        try:
            assert not client.at_end_of_file()
            daemon.popen.kill()
            assert client.at_end_of_file(GUARD_SECONDS)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_two_daemons_on_one_directory(socket_dir: Path):
    with process(socket_dir) as first:
        client = first.attach()
        before = {p.name: p.lstat().st_ino for p in socket_dir.iterdir()}
        with process(socket_dir, wait=False) as second:
            assert second.exit_status() == 1
            error = second.popen.stderr.read().splitlines()
            assert len(error) == 1
            assert f"pid {first.popen.pid}" in error[0]
        assert {p.name: p.lstat().st_ino for p in socket_dir.iterdir()} == before
        client.store(1, [KEY], [0])
        assert client.outcomes(1) == [1]
        assert not client.at_end_of_file()


def test_a_killed_daemon_is_replaced_at_once(socket_dir: Path):
    with process(socket_dir) as first:
        client = first.attach()
        first.popen.kill()
        assert client.at_end_of_file(GUARD_SECONDS)
        with process(socket_dir) as second:
            assert second.attach().response.boot_id != client.response.boot_id


def test_the_hard_deadline_ends_the_process_and_so_the_lease(socket_dir: Path):
    with process(socket_dir, hold=True, engine={"hard_deadline_seconds": 1.0}) as daemon:
        client = daemon.attach()
        client.store(1, [KEY], [0])
        assert client.at_end_of_file(GUARD_SECONDS)
        assert daemon.exit_status() == ABORTED
        assert "hard_deadline_seconds" in daemon.popen.stderr.read()


def test_a_pause_of_the_process_is_neither_a_stuck_transfer_nor_a_stuck_loop(socket_dir: Path):
    options = {"engine": {"hard_deadline_seconds": 3.0}, "stall_limit": 3.0}
    with process(socket_dir, hold=True, **options) as daemon:
        client = daemon.attach()
        client.store(1, [KEY], [0])
        daemon.popen.send_signal(signal.SIGSTOP)
        time.sleep(4)
        daemon.popen.send_signal(signal.SIGCONT)
        assert not client.at_end_of_file(0.7)
        daemon.popen.send_signal(signal.SIGUSR1)
        assert client.outcomes(1) == [1]
        daemon.popen.send_signal(signal.SIGTERM)
        assert daemon.exit_status() == 0


def test_a_stalled_loop_ends_the_process(socket_dir: Path):
    with process(socket_dir, stall=GUARD_SECONDS, stall_limit=1.0) as daemon:
        client = daemon.attach()
        daemon.popen.send_signal(signal.SIGUSR2)
        assert client.at_end_of_file(GUARD_SECONDS)
        assert daemon.exit_status() == ABORTED
        assert "event loop was silent" in daemon.popen.stderr.read()


def test_a_region_truncated_under_a_running_job_ends_every_lease(socket_dir: Path):
    with process(socket_dir, hold=True) as daemon:
        client, other = daemon.attach(), daemon.attach()
        client.store(1, [KEY], [7])
        os.ftruncate(client.region.descriptor, SLOT)
        daemon.popen.send_signal(signal.SIGUSR1)
        assert client.at_end_of_file(GUARD_SECONDS)
        assert other.at_end_of_file(GUARD_SECONDS)
        assert daemon.exit_status() == -signal.SIGBUS


def test_a_daemon_out_of_descriptors_accepts_again_when_some_are_free(socket_dir: Path):
    with process(socket_dir) as daemon:
        first = daemon.attach()
        limit = resource.RLIMIT_NOFILE
        before = resource.prlimit(daemon.popen.pid, limit)
        resource.prlimit(daemon.popen.pid, limit, (3, before[1]))
        with connect(str(socket_dir / "lease.sock")) as connection:
            send_frame(connection, frame(attach_request()), [first.region.descriptor])
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            first.store(1, [KEY], [0])
            assert first.outcomes(1) == [types_pb2.CHUNK_OUTCOME_STORED]
            resource.prlimit(daemon.popen.pid, limit, before)
            connection.settimeout(GUARD_SECONDS)
            assert receive_reply(connection).error.reason == "REGION_OVERLAP"


def test_kvferry_serve_on_the_file_store(socket_dir: Path, tmp_path: Path):
    words = ["serve", "--store-url", f"file://{tmp_path}/objects", "--http-listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "kvferry_server.cli", *words, "--socket-dir", str(socket_dir)]
    daemon = Process(socket_dir, command)
    try:
        wait_for((socket_dir / "lease.sock").exists)
        client = daemon.attach()
        data = [client.region.fill(slot, 50 + slot) for slot in range(4)]
        keys = [bytes([n]) * 36 for n in range(4)]
        client.store(1, keys, range(4))
        assert client.outcomes(1) == [types_pb2.CHUNK_OUTCOME_STORED] * 4
        assert client.lookup(keys) == [types_pb2.PRESENCE_PRESENT] * 4
        client.load(2, [*keys, b"absent key"], [7, 6, 5, 4, 3])
        assert client.outcomes(2) == [types_pb2.CHUNK_OUTCOME_LOADED] * 4 + [
            types_pb2.CHUNK_OUTCOME_MISSING
        ]
        assert [client.region.read(slot) for slot in (7, 6, 5, 4)] == data
        daemon.popen.send_signal(signal.SIGTERM)
        assert daemon.exit_status() == 0
        assert client.at_end_of_file(GUARD_SECONDS)
    finally:
        daemon.close()
