"""The caller's thread waits for no other thread: not for the lock, not for a long queue."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kvferry_client import Client, FakeClient, JobKind, Outcome, Presence, RequestContext
from kvferry_client.tier import MAX_TAKEN, TierLogic
from kvferry_client.wakeup import Wakeup

from .conftest import Region, key, replies, results
from .scripted import ScriptedDaemon

GUARD_SECONDS = 10.0


def in_a_thread(work: Callable[[], None]) -> None:
    """Do it in another thread; fail if it waits for something that this one holds."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive(), "it waits"


def test_J10_nothing_waits_while_another_thread_has_the_lock(
    daemon: ScriptedDaemon, client: Client, region: Region
) -> None:
    daemon.objects[key(2)] = bytes(region.stride)

    def use() -> None:
        client.store([key(1)], [1])
        client.load([key(2)], [2])
        client.lookup([key(2)])
        assert client.take_results() == []
        assert client.take_lookups() == []
        assert client.counters["sessions_attached"] == 1
        assert client.state is not None
        assert client.last_error == ""

    with client._shared.lock:
        in_a_thread(use)
    done = {result.kind: result.outcomes for result in results(client, 2)}
    assert done == {JobKind.STORE: (Outcome.STORED,), JobKind.LOAD: (Outcome.LOADED,)}
    assert replies(client, 1)[0].verdicts == (Presence.PRESENT,)


def test_what_was_handed_in_keeps_its_order(daemon: ScriptedDaemon, client: Client) -> None:
    def use() -> None:
        for number in range(20):
            client.store([key(number)], [number])

    with client._shared.lock:
        in_a_thread(use)
    client.store([key(20)], [20])
    results(client, 21)
    stored = [job.keys[0] for request in daemon.requests("Store") for job in request.jobs]
    assert stored == [key(number) for number in range(21)]


@pytest.mark.parametrize("closed", [False, True])
def test_what_is_handed_in_without_a_daemon_ends(
    make_client: Callable[..., Client], closed: bool
) -> None:
    client = make_client()
    client.start()
    if closed:
        assert client.close(timeout_s=GUARD_SECONDS)

    def use() -> None:
        client.store([key(1)], [1])

    with client._shared.lock:
        in_a_thread(use)
    [result] = results(client, 1)
    assert result.outcomes == (Outcome.NOT_SENT,)


def test_a_burst_of_results_is_taken_in_bit_by_bit_but_after_a_drain_at_once(
    region: Region,
) -> None:
    context = RequestContext("r")
    jobs = range(3 * MAX_TAKEN)

    def submitted() -> TierLogic:
        logic = TierLogic(FakeClient(region.view))
        for job in jobs:
            logic.submit_store(job, [key(job)], [job % 64], context)
        return logic

    logic = submitted()
    assert [job.job_id for job in logic.finished()] == list(jobs)[:MAX_TAKEN]
    assert logic.has_pending_work()
    logic.drain()
    assert [job.job_id for job in logic.finished()] == list(jobs)[MAX_TAKEN:]
    assert not logic.has_pending_work()


def test_a_job_of_many_chunks_is_taken_in_whole(region: Region) -> None:
    logic = TierLogic(FakeClient(region.view))
    slots = range(2 * MAX_TAKEN)
    logic.submit_store(1, [key(slot) for slot in slots], slots, RequestContext("r"))
    logic.submit_store(2, [key(99)], [63], RequestContext("r"))
    assert [job.job_id for job in logic.finished()] == [1]
    assert [job.job_id for job in logic.finished()] == [2]


def test_a_wakeup_before_the_wait_counts_and_only_once() -> None:
    wakeup = Wakeup()
    for _ in range(3):
        wakeup.set()
    in_a_thread(lambda: wakeup.wait(None))
    assert wakeup._tokens.empty()
    wakeup.wait(0.01)
    wakeup.set()
    in_a_thread(lambda: wakeup.wait(None))
