"""What releases a slot: a result from Poll or the end of the lease, and nothing else.

Each test puts one job into the daemon's hands, makes something go wrong, and then looks at
when, and how often, the job is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import pytest

from kvferry.v1 import offload_pb2
from kvferry_client import Client, ClientState, Outcome

from .conftest import Region, eventually, key, results
from .scripted import ScriptedDaemon

QUIET_SECONDS = 0.5
"""How long a job must stay unreleased; far longer than any reaction of the client."""


def hold_one_job(daemon: ScriptedDaemon, client: Client, *, load: bool = False) -> int:
    """Put one job into the daemon's hands, which keeps it running."""
    daemon.holding = True
    job = (client.load if load else client.store)([key(1)], [1])
    eventually(lambda: daemon.sessions and daemon.sessions[0].held)
    return job


def stays_open(client: Client, seconds: float = QUIET_SECONDS) -> None:
    """Check that nothing is reported for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert client.take_results() == []
        time.sleep(0.02)
    assert client.open_jobs == 1


def lost_at_end_of_file(daemon: ScriptedDaemon, client: Client, job: int) -> None:
    """Check that the end of the lease releases the job, once."""
    daemon.end_lease(daemon.sessions[0])
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.LOST,))
    assert not result.success
    time.sleep(0.3)
    assert client.take_results() == []


@pytest.mark.parametrize("load", [False, True])
def test_failing_channel_releases_nothing(
    daemon: ScriptedDaemon, client: Client, load: bool
) -> None:
    job = hold_one_job(daemon, client, load=load)
    daemon.stop_grpc()
    stays_open(client)
    assert client.counters["calls_failed"] > 1
    lost_at_end_of_file(daemon, client, job)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED], ids=lambda c: c.name
)
@pytest.mark.parametrize("method", ["Poll", "Store", "Lookup"])
def test_session_errors_half_close_but_release_nothing(
    daemon: ScriptedDaemon, client: Client, code: grpc.StatusCode, method: str
) -> None:
    job = hold_one_job(daemon, client)
    daemon.end_on_half_close = False
    session = daemon.sessions[0]
    daemon.fail(method, code, times=100)
    if method == "Store":
        client.store([key(2)], [2])
    else:
        client.lookup([key(2)])
    assert session.half_closed.wait(10)
    assert client.state is ClientState.ENDING
    refused = client.store([key(3)], [3])
    eventually(lambda: refused in [r.job_id for r in client.take_results()])
    daemon.faults[method].clear()
    open_before = client.open_jobs
    time.sleep(QUIET_SECONDS)
    assert client.take_results() == []
    assert client.open_jobs == open_before >= 1
    daemon.end_lease(session)
    got = results(client, open_before)
    assert job in [r.job_id for r in got]
    assert {r.outcomes for r in got} == {(Outcome.LOST,)}


def test_new_boot_id_releases_nothing(daemon: ScriptedDaemon, client: Client) -> None:
    job = hold_one_job(daemon, client)
    daemon.end_on_half_close = False
    session = daemon.sessions[0]
    daemon.boot_id = "f" * 32
    assert session.half_closed.wait(10)
    stays_open(client)
    lost_at_end_of_file(daemon, client, job)


def test_results_of_another_daemon_are_not_believed(daemon: ScriptedDaemon, client: Client) -> None:
    job = hold_one_job(daemon, client)
    daemon.end_on_half_close = False
    daemon.boot_id = "f" * 32
    daemon.release()
    stays_open(client)
    lost_at_end_of_file(daemon, client, job)


def test_results_still_count_while_the_session_ends(daemon: ScriptedDaemon, client: Client) -> None:
    job = hold_one_job(daemon, client)
    daemon.end_on_half_close = False
    daemon.fail("Lookup", grpc.StatusCode.NOT_FOUND)
    client.lookup([key(1)])
    assert daemon.sessions[0].half_closed.wait(10)
    daemon.release()
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.STORED,))


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
    ],
    ids=lambda c: c.name,
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_unclear_failures_are_repeated_with_the_same_number(
    daemon: ScriptedDaemon, client: Client, code: grpc.StatusCode, after: bool
) -> None:
    daemon.fail("Store", code, after=after, times=3)
    job = client.store([key(1)], [1])
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.STORED,))
    second = client.store([key(2)], [2])
    (result,) = results(client, 1)
    assert result.job_id == second
    numbers = [[job.job_id for job in request.jobs] for request in daemon.requests("Store")]
    assert [1] in numbers
    assert [2] in numbers
    assert client.counters["jobs_not_sent_refused"] == 0


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED],
    ids=lambda c: c.name,
)
def test_certain_refusal_fails_the_job_and_reuses_its_number(
    daemon: ScriptedDaemon, client: Client, code: grpc.StatusCode
) -> None:
    daemon.fail("Store", code)
    job = client.store([key(1)], [1])
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.NOT_SENT,))
    client.store([key(2)], [2])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.STORED,)
    numbers = [[job.job_id for job in request.jobs] for request in daemon.requests("Store")]
    assert numbers == [[1], [1]]
    assert client.state is ClientState.ATTACHED


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED],
    ids=lambda c: c.name,
)
def test_refusal_after_an_unclear_attempt_releases_nothing(
    daemon: ScriptedDaemon, client: Client, code: grpc.StatusCode
) -> None:
    daemon.holding = True
    daemon.end_on_half_close = False
    daemon.fail("Store", grpc.StatusCode.UNAVAILABLE, after=True)
    daemon.fail("Store", code, times=100)
    job = client.store([key(1)], [1])
    session = daemon.sessions[0]
    assert session.half_closed.wait(10)
    stays_open(client)
    lost_at_end_of_file(daemon, client, job)


def test_one_bad_job_does_not_take_the_others_with_it(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.delays["Store"] = 0.2
    client.store([key(0)], [0])
    eventually(lambda: daemon.requests("Store"))
    daemon.delays["Store"] = 0
    jobs = [client.store([key(n)], [n]) for n in (1, 2, 3)]
    eventually(lambda: not daemon.faults["Store"])
    results(client, 4)
    daemon.calls.clear()
    daemon.delays["Store"] = 0.2
    client.store([key(10)], [10])
    eventually(lambda: daemon.requests("Store"))
    daemon.fail("Store", grpc.StatusCode.INVALID_ARGUMENT)
    daemon.delays["Store"] = 0
    time.sleep(0.3)
    daemon.calls.clear()
    daemon.faults["Store"].clear()
    daemon.fail("Store", grpc.StatusCode.INVALID_ARGUMENT)
    daemon.delays["Load"] = 0.3
    client.load([key(1)], [20])
    eventually(lambda: daemon.requests("Load"))
    jobs = [client.store([key(n)], [n]) for n in (11, 12, 13)]
    got = {r.job_id: r.outcomes for r in results(client, 5)}
    assert [got[job] for job in jobs] == [(Outcome.STORED,)] * 3
    sizes = [len(request.jobs) for request in daemon.requests("Store")]
    assert sizes == [3, 1, 1, 1]


def test_lost_poll_replies_are_repeated_and_reported_once(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.fail("Poll", grpc.StatusCode.UNAVAILABLE, after=True, times=3)
    jobs = [client.store([key(n)], [n]) for n in range(5)]
    assert sorted(r.job_id for r in results(client, 5)) == jobs
    time.sleep(0.2)
    assert client.take_results() == []


def test_J04_late_and_repeated_results_are_dropped_and_counted(
    daemon: ScriptedDaemon, client: Client
) -> None:
    job = hold_one_job(daemon, client)
    session = daemon.sessions[0]
    daemon.release()
    (result,) = results(client, 1)
    assert result.job_id == job
    with daemon.changed:
        daemon._report(session, 1, 1, [1])
        daemon._report(session, 1, 1, [1])
        daemon.changed.notify_all()
    client.store([key(4)], [4])
    results(client, 1)
    assert client.counters["results_unknown"] == 2
    repeat = offload_pb2.JobResult(seq=1, job_id=1, kind=1, outcomes=[1])
    daemon.holding = True
    client.store([key(5)], [5])
    eventually(lambda: session.held)
    with daemon.changed:
        session.results.insert(0, repeat)
        session.results[0].seq = 1
        daemon.changed.notify_all()
    daemon.release()
    results(client, 1)
    assert client.counters["results_duplicate"] == 1


@pytest.mark.parametrize(("job_id", "gap"), [(77, 0), (0, 0), (1, 5)])
def test_result_of_another_job_or_out_of_order_ends_the_session(
    daemon: ScriptedDaemon, client: Client, job_id: int, gap: int
) -> None:
    job = hold_one_job(daemon, client)
    session = daemon.sessions[0]
    with daemon.changed:
        session.next_seq += gap
        daemon._report(session, job_id, 1, [1])
        daemon.changed.notify_all()
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.LOST,))


def test_result_that_does_not_fit_its_job_ends_the_session(
    daemon: ScriptedDaemon, client: Client
) -> None:
    job = hold_one_job(daemon, client)
    session = daemon.sessions[0]
    daemon.end_on_half_close = False
    with daemon.changed:
        daemon._report(session, 1, 1, [1, 1])
        daemon.changed.notify_all()
    assert session.half_closed.wait(10)
    stays_open(client)
    lost_at_end_of_file(daemon, client, job)


def test_already_reported_for_an_open_job_ends_the_session(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.end_on_half_close = False
    session = daemon.sessions[0]
    session.seen[1] = "finished"
    job = client.store([key(1)], [1])
    assert session.half_closed.wait(10)
    stays_open(client)
    lost_at_end_of_file(daemon, client, job)


def test_J01_load_that_is_never_admitted_becomes_one_failed_result(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    client = make_client(stall_timeout_s=0.5)
    assert client.wait_attached(10)
    daemon.fail("Load", grpc.StatusCode.INTERNAL, times=1000)
    job = client.load([key(1)], [1])
    (result,) = results(client, 1)
    assert (result.job_id, result.success) == (job, False)
    daemon.faults["Load"].clear()
    eventually(lambda: client.state is ClientState.ATTACHED)
    client.load([key(1)], [1])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.MISSING,)


def test_after_end_of_file_a_new_session_counts_from_one(
    daemon: ScriptedDaemon, client: Client, region: Region
) -> None:
    for number in range(3):
        client.store([key(number)], [number])
    results(client, 3)
    first = daemon.sessions[0]
    daemon.calls.clear()
    daemon.end_lease(first)
    eventually(lambda: daemon.sessions and client.state is ClientState.ATTACHED)
    assert daemon.sessions[0] is not first
    region.write(9, 9)
    client.store([key(9)], [9])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.STORED,)
    assert [job.job_id for r in daemon.requests("Store") for job in r.jobs] == [1]
    assert daemon.objects[key(9)][0] == 9


def test_jobs_that_were_never_sent_fail_at_the_end_too(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.holding = True
    daemon.fail("Store", grpc.StatusCode.UNAVAILABLE, times=1000)
    sent = client.store([key(1)], [1])
    eventually(lambda: daemon.requests("Store"))
    queued = client.load([key(2)], [2])
    stays = time.monotonic() + 0.5
    while time.monotonic() < stays:
        assert client.take_results() == []
        time.sleep(0.02)
    daemon.end_lease(daemon.sessions[0])
    got = {r.job_id: r.outcomes for r in results(client, 2)}
    assert got == {sent: (Outcome.LOST,), queued: (Outcome.NOT_SENT,)}


def test_drain_cancels_what_is_queued_and_waits_for_the_rest(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.holding = True
    jobs = [client.store([key(n)], [n]) for n in range(4)]
    eventually(lambda: daemon.sessions[0].held)
    assert client.drain(timeout_s=10)
    assert client.open_jobs == 0
    assert sorted(r.job_id for r in client.take_results()) == jobs


def test_drain_waits_for_end_of_file_if_the_daemon_does_not_answer(
    daemon: ScriptedDaemon, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    job = hold_one_job(daemon, client)
    daemon.stop_grpc()
    assert not client.drain(timeout_s=1)
    assert client.take_results() == []
    daemon.end_lease(daemon.sessions[0])
    assert client.drain()
    (result,) = client.take_results()
    assert (result.job_id, result.outcomes) == (job, (Outcome.LOST,))
    del caplog
