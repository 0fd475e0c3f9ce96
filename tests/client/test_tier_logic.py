"""The tier's logic without vLLM, over the fake and over the real client."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest

from kvferry_client import Client, FakeClient, RequestContext
from kvferry_client.tier import MAX_TAKEN, TierLogic, Verdict

from .conftest import Region, eventually, key
from .scripted import ScriptedDaemon

A, B = RequestContext("a"), RequestContext("b")


@pytest.fixture
def fake(region: Region) -> FakeClient:
    return FakeClient(region.view)


def ask(logic: TierLogic, context: RequestContext, *numbers: int) -> list[Verdict]:
    """Ask like a scheduler: every key, end of step, every key again."""
    for number in numbers:
        logic.lookup(key(number), context)
    logic.flush()
    return [logic.lookup(key(number), context) for number in numbers]


def test_round_trip(region: Region, fake: FakeClient) -> None:
    logic = TierLogic(fake)
    region.write(1, 5)
    logic.submit_store(70, [key(1)], [1], A)
    (job,) = logic.finished()
    assert (job.job_id, job.success, job.good_keys) == (70, True, (key(1),))
    assert logic.finished() == []
    assert ask(logic, A, 1, 2) == [Verdict.HIT, Verdict.MISS]
    logic.submit_load(71, [key(1)], [2], A)
    (job,) = logic.finished()
    assert (job.job_id, job.success) == (71, True)
    assert region.read(2) == bytes([5]) * region.stride


def test_L01_failed_load_is_a_miss_for_the_request(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    fake.objects.update({key(1): bytes(4096), key(2): bytes(4096)})
    assert ask(logic, A, 1, 2) == [Verdict.HIT] * 2
    assert ask(logic, B, 1) == [Verdict.HIT]
    del fake.objects[key(1)]
    logic.submit_load(1, [key(1), key(2)], [1, 2], A)
    (job,) = logic.finished()
    assert (job.success, job.good_keys) == (False, (key(2),))
    assert logic.lookup(key(1), A) is Verdict.MISS
    assert logic.lookup(key(2), A) is Verdict.HIT
    assert logic.lookup(key(1), B) is Verdict.RETRY
    assert ask(logic, B, 1) == [Verdict.MISS]


def test_L03_connection_error_does_not_drop_other_requests_hit(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    fake.objects[key(1)] = bytes(4096)
    assert ask(logic, A, 1) == [Verdict.HIT]
    fake.failing.add(key(1))
    logic.submit_load(1, [key(1)], [1], A)
    assert not logic.finished()[0].success
    assert logic.lookup(key(1), A) is Verdict.MISS
    fake.failing.clear()
    assert ask(logic, B, 1) == [Verdict.HIT]


def test_unknown_is_a_miss_for_its_request_only(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    fake.objects[key(1)] = bytes(4096)
    fake.attached = False
    assert ask(logic, A, 1) == [Verdict.MISS]
    fake.attached = True
    assert ask(logic, A, 1) == [Verdict.MISS]
    assert ask(logic, B, 1) == [Verdict.HIT]


def test_verdicts_end_with_the_request(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    assert ask(logic, A, 1) == [Verdict.MISS]
    logic.finish_request("a")
    fake.objects[key(1)] = bytes(4096)
    assert ask(logic, A, 1) == [Verdict.HIT]


def test_aborted_requests_leave_nothing_pending(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    logic.lookup(key(1), A)
    logic.finish_request("a")
    assert not logic.has_pending_work()
    assert fake.take_lookups() == []
    logic.lookup(key(1), A)
    logic.flush()
    logic.finish_request("a")
    assert not logic.has_pending_work()
    assert logic._tickets == {}
    assert logic._verdicts == {}


def test_pending_work_is_open_lookups_and_jobs(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    assert not logic.has_pending_work()
    logic.submit_store(1, [key(1)], [1], A)
    assert logic.has_pending_work()
    logic.finished()
    assert not logic.has_pending_work()


def test_J04_unknown_results_are_dropped_and_counted(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    fake.store([key(1)], [1])
    assert logic.finished() == []
    assert logic.unknown_results == 1


def test_groups_travel_apart_and_keep_their_order(daemon: ScriptedDaemon, client: Client) -> None:
    logic = TierLogic(client)
    for number in range(3):
        logic.lookup(key(number), A, 16 * number)
    logic.lookup(key(9)[:-1] + b"\1", A, 48)
    logic.lookup(key(8)[:-1] + b"\1", A, 32)
    logic.lookup(key(0), B)
    logic.flush()
    eventually(lambda: sum(len(r.groups) for r in daemon.requests("Lookup")) == 3)
    groups = [group for request in daemon.requests("Lookup") for group in request.groups]
    assert [(g.context.request_id, len(g.keys), g.prefix_ordered) for g in groups] == [
        ("a", 3, True),
        ("a", 2, False),
        ("b", 1, False),
    ]


def test_L01_over_the_wire_loads_once(daemon: ScriptedDaemon, client: Client) -> None:
    logic = TierLogic(client)
    daemon.objects[key(1)] = bytes(4096)
    assert logic.lookup(key(1), A) is Verdict.RETRY
    logic.flush()
    eventually(lambda: logic.lookup(key(1), A) is Verdict.HIT)
    del daemon.objects[key(1)]
    logic.submit_load(1, [key(1)], [1], A)
    eventually(logic.finished)
    assert [logic.lookup(key(1), A) for _ in range(5)] == [Verdict.MISS] * 5
    assert len(daemon.requests("Load")) == 1


def test_L04_slow_daemon_becomes_a_miss(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    daemon.objects[key(1)] = bytes(4096)
    daemon.delays["Lookup"] = 2
    client = make_client(lookup_timeout_s=0.3)
    assert client.wait_attached(10)
    logic = TierLogic(client)
    assert logic.lookup(key(1), A) is Verdict.RETRY
    logic.flush()
    assert logic.has_pending_work()
    eventually(lambda: logic.lookup(key(1), A) is Verdict.MISS, timeout=1.5)
    assert not logic.has_pending_work()


def test_J09_store_of_a_finished_request(daemon: ScriptedDaemon, client: Client) -> None:
    logic = TierLogic(client)
    logic.finish_request("a")
    logic.submit_store(5, [key(1)], [1], A)
    got: list[object] = []
    eventually(lambda: got.extend(logic.finished()) or got)
    assert key(1) in daemon.objects


def test_J01_refused_load_is_one_failed_job(daemon: ScriptedDaemon, client: Client) -> None:
    logic = TierLogic(client)
    daemon.fail("Load", grpc.StatusCode.INVALID_ARGUMENT)
    logic.submit_load(5, [key(1)], [1], A)
    got: list[object] = []
    eventually(lambda: got.extend(logic.finished()) or got)
    assert [(job.job_id, job.success) for job in got] == [(5, False)]


def test_drain_leaves_every_result_ready(daemon: ScriptedDaemon, client: Client) -> None:
    logic = TierLogic(client)
    daemon.holding = True
    for number in range(5):
        logic.submit_store(number, [key(number)], [number], A)
    eventually(lambda: daemon.sessions[0].held)
    logic.drain()
    assert sorted(job.job_id for job in logic.finished()) == list(range(5))
    assert not logic.has_pending_work()


def test_drain_without_jobs_lets_a_later_burst_in_bit_by_bit(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    logic.drain()
    for number in range(3 * MAX_TAKEN):
        logic.submit_store(number, [key(number)], [number % 64], A)
    assert len(logic.finished()) == MAX_TAKEN


def test_everything_that_a_drain_ended_comes_at_once(fake: FakeClient) -> None:
    logic = TierLogic(fake)
    for number in range(3 * MAX_TAKEN):
        logic.submit_store(number, [key(number)], [number % 64], A)
    logic.drain()
    assert len(logic.finished()) == 3 * MAX_TAKEN
