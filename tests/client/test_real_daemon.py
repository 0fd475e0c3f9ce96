"""The client against the real daemon on its file store."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvferry_client import Client, ClientState, Outcome, Presence

from .conftest import Region, eventually, key, replies, results


class RealDaemon:
    """`kvferry serve` as a process of its own."""

    def __init__(self, socket_dir: Path, objects: Path, log: Path) -> None:
        self.socket_dir, self.objects, self.log = socket_dir, objects, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> RealDaemon:
        command = [sys.executable, "-m", "kvferry_server.cli", "serve"]
        options = ["--store-url", f"file://{self.objects}", "--socket-dir", str(self.socket_dir)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *options, "--http-listen", "127.0.0.1:0"], stderr=log, stdout=log
            )
        return self

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process is not None:
            self.send(signal.SIGCONT)
            self.process.kill()
            self.process.wait(30)
            self.process = None


@pytest.fixture
def real(clients: list[Client], tmp_path: Path) -> Iterator[RealDaemon]:
    del clients
    parent = Path(tempfile.mkdtemp(prefix="kvf"))
    objects = tmp_path / "objects"
    objects.mkdir()
    daemon = RealDaemon(parent / "s", objects, tmp_path / "log").start()
    eventually(lambda: ": ready: " in daemon.log.read_text(), 60)
    yield daemon
    daemon.kill()
    shutil.rmtree(parent)


@pytest.fixture
def attach(real: RealDaemon, region: Region, clients: list[Client]) -> Callable[..., Client]:
    """Makes attached clients of the real daemon."""

    def make(view: memoryview | None = None, **options: object) -> Client:
        arguments: dict[str, object] = {"namespace": "ns", "engine_id": "engine", **options}
        client = Client(real.socket_dir, view or region.view, **arguments)  # type: ignore[arg-type]
        clients.append(client)
        assert client.wait_attached(30), client.last_error
        return client

    return make


def hit(client: Client, number: int) -> bool:
    """Ask once whether a key is there."""
    client.lookup([key(number)])
    return replies(client, 1)[0].verdicts == (Presence.PRESENT,)


def test_round_trip(attach: Callable[..., Client], region: Region) -> None:
    client = attach()
    for slot in range(64):
        region.write(slot, slot)
    keys = [key(n) for n in range(64)]
    client.store(keys, range(64))
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.STORED,) * 64
    assert result.transferred_bytes == 64 * region.stride
    client.lookup([*keys, key(1000)], prefix_ordered=True)
    assert replies(client, 1)[0].verdicts == (Presence.PRESENT,) * 64 + (Presence.ABSENT,)
    region.map[:] = bytes(len(region.map))
    client.load(keys, list(reversed(range(64))))
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.LOADED,) * 64
    assert [region.read(63 - n) for n in range(64)] == [
        bytes([n]) * region.stride for n in range(64)
    ]
    assert client.close(timeout_s=10)


def test_J02_J08_missing_keys_fail_alone(attach: Callable[..., Client]) -> None:
    client = attach()
    client.store([key(1), key(3)], [1, 3])
    results(client, 1)
    client.load([key(1), key(2), key(3)], [11, 12, 13])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.LOADED, Outcome.MISSING, Outcome.LOADED)


def test_G07_seventy_thousand_keys(attach: Callable[..., Client]) -> None:
    client = attach(lookup_timeout_s=60)
    client.store([(7).to_bytes(64, "big")], [0])
    results(client, 1)
    client.lookup([n.to_bytes(64, "big") for n in range(70_000)])
    (reply,) = replies(client, 1, timeout=90)
    assert reply.verdicts[7] is Presence.PRESENT
    assert len(reply.verdicts) == 70_000
    assert set(reply.verdicts) <= {Presence.ABSENT, Presence.UNKNOWN, Presence.PRESENT}
    assert reply.verdicts.count(Presence.PRESENT) == 1


def test_G14_killed_and_restarted_at_once(attach: Callable[..., Client], real: RealDaemon) -> None:
    client = attach()
    client.store([key(1)], [1])
    results(client, 1)
    real.send(signal.SIGSTOP)
    job = client.store([key(2)], [2])
    time.sleep(0.3)
    assert client.take_results() == []
    real.kill()
    real.start()
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.LOST,))
    assert client.wait_attached(30)
    assert hit(client, 1)
    client.store([key(3)], [3])
    assert results(client, 1)[0].outcomes == (Outcome.STORED,)


def test_J10_stopped_daemon_blocks_nobody_and_loses_nothing(
    attach: Callable[..., Client], real: RealDaemon
) -> None:
    client = attach(lookup_timeout_s=0.5)
    real.send(signal.SIGSTOP)
    waited = 0.0
    jobs = []
    for number in range(100):
        began, cpu = time.monotonic(), time.thread_time()
        client.lookup([key(number)])
        jobs.append(client.store([key(number)], [number % 64]))
        assert client.take_results() == []
        waited = max(waited, time.monotonic() - began - (time.thread_time() - cpu))
    assert waited < 1.0
    got = replies(client, 100)
    assert {verdict for reply in got for verdict in reply.verdicts} == {Presence.UNKNOWN}
    time.sleep(6)
    assert client.open_jobs == 100
    real.send(signal.SIGCONT)
    assert sorted(r.job_id for r in results(client, 100, timeout=30)) == jobs
    assert client.state is ClientState.ATTACHED


def test_clean_stop_of_the_daemon_reports_what_ran(
    attach: Callable[..., Client], real: RealDaemon
) -> None:
    client = attach()
    jobs = [client.store([key(n)], [n % 64]) for n in range(50)]
    real.send(signal.SIGTERM)
    got = results(client, 50, timeout=30)
    assert sorted(r.job_id for r in got) == jobs
    assert real.process is not None
    assert real.process.wait(30) == 0
    eventually(lambda: client.state is ClientState.CONNECTING)


def test_drain_and_close_let_go_of_the_region(
    attach: Callable[..., Client], real: RealDaemon, region: Region
) -> None:
    client = attach()
    for number in range(50):
        client.store([key(number)], [number])
    assert client.drain(timeout_s=20)
    assert len(client.take_results()) == 50
    assert client.close(timeout_s=10)
    inode = os.fstat(region.fd).st_ino
    assert real.process is not None
    maps = Path(f"/proc/{real.process.pid}/maps").read_text()
    assert not any(line.split()[4] == str(inode) for line in maps.splitlines())
    attach()


def test_L03_object_removed_by_somebody_else(
    attach: Callable[..., Client], real: RealDaemon
) -> None:
    client = attach()
    client.store([key(1)], [1])
    results(client, 1)
    assert hit(client, 1)
    for path in real.objects.rglob("*.bin"):
        path.unlink()
    client.load([key(1)], [2])
    assert results(client, 1)[0].outcomes == (Outcome.MISSING,)
    assert not hit(client, 1)
    client.store([key(1)], [1])
    assert results(client, 1)[0].outcomes == (Outcome.STORED,)


def test_G17_two_engines_see_their_own_jobs_only(attach: Callable[..., Client]) -> None:
    other = Region()
    try:
        first, second = attach(), attach(other.view, namespace="other")
        one = first.store([key(1)], [1])
        two = second.store([key(2)], [2])
        assert [r.job_id for r in results(first, 1)] == [one]
        assert [r.job_id for r in results(second, 1)] == [two]
        assert hit(first, 1)
        assert not hit(first, 2)
        assert hit(second, 2)
        assert second.close(timeout_s=10)
    finally:
        other.close()


def test_M06_killed_engine_frees_its_region(
    attach: Callable[..., Client], real: RealDaemon
) -> None:
    script = (
        "import mmap, os, sys, time\n"
        "from kvferry_client import Client\n"
        "fd = os.memfd_create('r'); os.ftruncate(fd, 65536); m = mmap.mmap(fd, 65536)\n"
        "view = memoryview(m).cast('B', (16, 4096))\n"
        "client = Client(sys.argv[1], view, namespace='n', engine_id='victim')\n"
        "assert client.wait_attached(20)\n"
        "print(os.fstat(fd).st_ino, flush=True)\n"
        "time.sleep(60)\n"
    )
    attach()
    with subprocess.Popen(
        [sys.executable, "-c", script, str(real.socket_dir)], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout is not None
        inode = engine.stdout.readline().strip()
        assert real.process is not None
        maps = Path(f"/proc/{real.process.pid}/maps")
        mapped = lambda: any(line.split()[4] == inode for line in maps.read_text().splitlines())  # noqa: E731
        assert mapped()
        engine.kill()
        eventually(lambda: not mapped(), timeout=5)
