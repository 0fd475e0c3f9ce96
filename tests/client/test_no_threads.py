"""A process that gets no more threads: lookups are misses, jobs end, and all works once it does.

The fault is real: no stack of the size asked for can be mapped, so pthread_create fails.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvferry_client import Client, ClientState, FakeClient, Outcome, Presence, RequestContext
from kvferry_client.tier import FinishedJob, TierLogic, Verdict

from .conftest import Region, eventually, key, replies, results
from .scripted import ScriptedDaemon

A, B = RequestContext("a"), RequestContext("b")
IMPOSSIBLE_STACK = 1 << 46


@contextmanager
def no_threads() -> Iterator[None]:
    """Nobody in this process gets a thread from Python."""
    before = threading.stack_size(IMPOSSIBLE_STACK)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=print).start()
        yield
    finally:
        threading.stack_size(before)


def verdict(logic: TierLogic, number: int, context: RequestContext) -> Verdict:
    """Step like a scheduler until the verdict is there."""
    seen = [logic.lookup(key(number), context)]

    def answered() -> bool:
        logic.flush()
        seen.append(logic.lookup(key(number), context))
        return seen[-1] is not Verdict.RETRY

    eventually(answered)
    return seen[-1]


def outcome(logic: TierLogic, job_id: int) -> FinishedJob:
    """Wait for the only job."""
    got: list[FinishedJob] = []
    eventually(lambda: got.extend(logic.finished()) or got)
    assert [job.job_id for job in got] == [job_id]
    return got[0]


def test_L04_a_client_that_cannot_start_answers_and_starts_later(
    daemon: ScriptedDaemon, region: Region, clients: list[Client]
) -> None:
    client = Client(daemon.directory, region.view, namespace="n", engine_id="e")
    clients.append(client)
    logic = TierLogic(client)
    daemon.objects[key(1)] = bytes(4096)
    with no_threads():
        logic.start()
        assert client.last_error
        assert verdict(logic, 1, A) is Verdict.MISS
        logic.submit_store(7, [key(2)], [2], A)
        assert not outcome(logic, 7).success
        assert not logic.has_pending_work()
        logic.drain()

    def attached() -> bool:
        client.start()
        return client.state is ClientState.ATTACHED

    eventually(attached)
    assert verdict(logic, 1, B) is Verdict.HIT
    logic.submit_store(8, [key(2)], [2], B)
    assert outcome(logic, 8).success


@pytest.mark.parametrize("missing", ["sender", "poller", "connection"])
def test_one_thread_that_does_not_start_leaves_no_job_open(
    daemon: ScriptedDaemon,
    region: Region,
    clients: list[Client],
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
) -> None:
    client = Client(daemon.directory, region.view, namespace="n", engine_id="e")
    clients.append(client)
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if thread.name == f"kvferry-{missing}":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", failing)
        assert not client.wait_attached(0.5)
        client.store([key(1)], [1])
        assert [result.outcomes for result in results(client, 1)] == [(Outcome.NOT_SENT,)]
    eventually(lambda: client.wait_attached(0.1))
    client.store([key(1)], [1])
    assert [result.outcomes for result in results(client, 1)] == [(Outcome.STORED,)]
    names = [thread.name for thread in threading.enumerate()]
    assert [names.count(f"kvferry-{n}") for n in ("sender", "poller", "connection")] == [1, 1, 1]


@pytest.fixture
def far_client(socket_dir: Path, make_client: Callable[..., Client]) -> Iterator[Client]:
    """A client whose daemon is another process, so that the fault is the client's alone."""
    command = [sys.executable, "-m", "tests.client.scripted", str(socket_dir)]
    with subprocess.Popen(command) as server:
        try:
            client = make_client()
            assert client.wait_attached(30)
            yield client
        finally:
            server.kill()


@pytest.mark.parametrize("first", ["lookup", "store"])
def test_grpc_without_its_thread_ends_the_session_and_leaves_nothing_open(
    far_client: Client, first: str
) -> None:
    """That thread comes with the first of the calls in flight; without it none is answered."""
    client = far_client
    with no_threads():
        if first == "lookup":
            client.lookup([key(2)])
            assert replies(client, 1)[0].verdicts == (Presence.UNKNOWN,)
        client.store([key(2)], [2])
        assert not results(client, 1)[0].success
        assert client.drain(10)
        eventually(lambda: client.last_error == "can't start new thread")
    assert client.wait_attached(10)
    client.store([key(2)], [2])
    assert results(client, 1)[0].success
    client.lookup([key(2)])
    assert replies(client, 1)[0].verdicts == (Presence.PRESENT,)


class Faulty(FakeClient):
    """A client whose lookups raise for some keys."""

    broken: frozenset[bytes] = frozenset()

    def lookup(
        self,
        keys: Sequence[bytes],
        prefix_ordered: bool = False,
        context: RequestContext | None = None,
    ) -> int:
        if self.broken.intersection(keys):
            raise MemoryError
        return super().lookup(keys, prefix_ordered, context)


def test_a_lookup_that_raises_is_a_miss_and_the_others_go_out(region: Region) -> None:
    fake = Faulty(region.view)
    fake.objects[key(2)] = bytes(4096)
    fake.broken = frozenset([key(1)])
    logic = TierLogic(fake)
    assert logic.lookup(key(1), A) is Verdict.RETRY
    with pytest.raises(MemoryError):
        logic.lookup(key(2), B)
    assert logic.lookup(key(1), A) is Verdict.MISS
    assert logic.lookup(key(2), B) is Verdict.RETRY
    assert verdict(logic, 2, B) is Verdict.HIT
    assert not logic.has_pending_work()
