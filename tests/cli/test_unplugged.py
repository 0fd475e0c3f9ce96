"""A real S3 server is stopped under a working daemon and comes back."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvferry_client import Client, LookupReply, Outcome, Presence
from tests.support.s3_servers import started

from .harness import (
    GUARD_SECONDS,
    SLOTS,
    Daemon,
    attached,
    environment,
    key,
    result_of,
    wait_for,
)

HEALED_SECONDS = 40.0
STEADY_OUTAGES = 3
MOST_OUTAGES = 12


@pytest.fixture
def server():
    with started("localbucket") as running:
        yield running


def serve(root: Path, server) -> Daemon:
    return Daemon(
        root,
        "--store-url",
        f"s3://{server.bucket}/prefix",
        env=environment(**server.environment()),
    )


class Traffic:
    """Jobs of one chunk each, and how often each was reported."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.submitted: set[int] = set()
        self.reported: Counter[int] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self._number = 0

    def round(self) -> None:
        """Store half of the slots under new keys, load the other half from old ones."""
        for slot in range(SLOTS):
            self._number += 1
            call = self.client.store if slot % 2 else self.client.load
            number = self._number if slot % 2 else max(2, self._number - 5 * SLOTS)
            self.submitted.add(call([key(number)], [slot]))

    def take(self) -> None:
        for result in self.client.take_results():
            self.reported[result.job_id] += 1
            self.outcomes.update(result.outcomes)

    def settle(self) -> None:
        """Wait until no job is open; each must have been reported once."""
        wait_for(lambda: not self.client.open_jobs, GUARD_SECONDS)
        self.take()
        assert self.reported == Counter(self.submitted)


def run_for(traffic: Traffic, seconds: float) -> None:
    """Keep a round of jobs open."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if traffic.client.open_jobs:
            traffic.client.wait_results(0.2)
            traffic.take()
        else:
            traffic.round()


def outcome(client: Client, job_id: int) -> Outcome:
    """How a job of one chunk ended."""
    [ended] = result_of(client, job_id).outcomes
    return ended


def heal(client: Client) -> None:
    """Wait until a chunk goes out and comes back."""
    fresh = key(time.monotonic_ns())
    end = time.monotonic() + HEALED_SECONDS
    while outcome(client, client.store([fresh], [0])) is not Outcome.STORED:
        assert time.monotonic() < end, "the daemon did not recover"
        time.sleep(0.2)
    while outcome(client, client.load([fresh], [1])) is not Outcome.LOADED:
        assert time.monotonic() < end, "the daemon stores but does not load"
        time.sleep(0.2)
    client.lookup([fresh])
    replies: list[LookupReply] = []
    wait_for(lambda: bool(replies.extend(client.take_lookups()) or replies))
    assert replies[0].verdicts == (Presence.PRESENT,)


def footprint(pid: int) -> tuple[int, int, int, float]:
    """Descriptors without connections, connections, threads and resident MiB of a process.

    The SDK keeps an eventfd beside the socket of each pooled connection.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    resident = int(fields["VmRSS"].split()[0]) / 1024
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    pooled = sum(each.startswith(("socket:", "anon_inode:[eventfd]")) for each in targets)
    return len(targets) - pooled, pooled, int(fields["Threads"]), resident


def outage(client: Client, server) -> None:
    """Traffic; then the store is gone for a while; then all is well again."""
    traffic = Traffic(client)
    run_for(traffic, 1.0)
    server.kill()
    run_for(traffic, 3.0)
    traffic.settle()
    assert traffic.outcomes[Outcome.UNAVAILABLE] + traffic.outcomes[Outcome.SHED]
    server.start()
    heal(client)


def steady(footprints: Sequence[tuple[int, int, int, float]]) -> bool:
    """Whether the last outages cost no descriptor, no thread and hardly any memory.

    The first ones may: threads for questions (at most 8) and agents for lookups are made when one
    is short, and stay.
    """
    descriptors, pooled, threads, resident = zip(*footprints[-STEADY_OUTAGES:], strict=True)
    return (
        len(threads) == STEADY_OUTAGES
        and max(descriptors) <= descriptors[0]
        and pooled[-1] <= pooled[0] + 40
        and max(threads) <= threads[0]
        and resident[-1] <= resident[0] + 16
    )


def test_an_unplugged_store_costs_failed_jobs_and_nothing_else(tmp_path: Path, server):
    daemon = serve(tmp_path, server)
    try:
        daemon.wait_ready()
        with attached(daemon.sockets) as client:
            footprints: list[tuple[int, int, int, float]] = []
            while not footprints or not steady(footprints):
                assert len(footprints) < MOST_OUTAGES, f"each outage costs more: {footprints}"
                outage(client, server)
                footprints.append(footprint(daemon.process.pid))
        assert daemon.terminate()[0] == 0
    finally:
        daemon.kill()


def test_a_daemon_that_starts_without_its_store_serves_and_heals(tmp_path: Path, server):
    server.kill()
    daemon = serve(tmp_path, server)
    try:
        daemon.wait_serving()
        with attached(daemon.sockets) as client:
            assert outcome(client, client.store([key(1)], [0])) is Outcome.SHED
            assert outcome(client, client.load([key(1)], [1])) is Outcome.UNAVAILABLE
            server.start()
            heal(client)
        assert daemon.log.count("endpoint") >= 1
    finally:
        daemon.kill()
