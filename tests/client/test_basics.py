"""The client against a well-behaved daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from kvferry.v1 import types_pb2
from kvferry_client import Client, ClientState, JobKind, Outcome, Presence, RequestContext

from .conftest import Region, eventually, key, replies, results
from .scripted import DEFAULT_LIMITS, ScriptedDaemon


def test_round_trip(client: Client, region: Region) -> None:
    for slot in range(4):
        region.write(slot, slot + 1)
    keys = [key(n) for n in range(4)]
    stored = client.store(keys, range(4), RequestContext("r1", 3, (("a", "b"),)))
    (result,) = results(client, 1)
    assert (result.job_id, result.kind, result.success) == (stored, JobKind.STORE, True)
    assert result.outcomes == (Outcome.STORED,) * 4
    assert result.transferred_bytes == 4 * region.stride
    assert result.transfer_seconds > 0
    for slot in range(4):
        region.write(slot, 0)
    ticket = client.lookup([*keys, key(99)], prefix_ordered=True)
    (reply,) = replies(client, 1)
    assert reply.ticket == ticket
    assert reply.verdicts == (Presence.PRESENT,) * 4 + (Presence.ABSENT,)
    client.load(keys, range(4))
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.LOADED,) * 4
    assert [region.read(slot)[0] for slot in range(4)] == [1, 2, 3, 4]


def test_J02_missing_key_gives_exactly_one_failed_result(client: Client) -> None:
    job = client.load([key(1)], [0])
    (result,) = results(client, 1)
    assert (result.job_id, result.success, result.outcomes) == (job, False, (Outcome.MISSING,))
    assert client.open_jobs == 0


def test_results_are_acknowledged_and_an_idle_client_is_silent(
    daemon: ScriptedDaemon, client: Client
) -> None:
    client.store([key(1)], [1])
    results(client, 1)
    eventually(lambda: daemon.requests("Poll")[-1].ack_seq == 1)
    eventually(lambda: not daemon.sessions[0].results)
    polls = len(daemon.requests("Poll"))
    client.lookup([key(1)])
    replies(client, 1)
    assert len(daemon.requests("Poll")) == polls


def test_wire_numbers_are_dense_over_stores_and_loads(
    daemon: ScriptedDaemon, client: Client
) -> None:
    for number in range(10):
        (client.store if number % 2 else client.load)([key(number)], [number])
    results(client, 10)
    jobs = [
        job.job_id
        for name, request in daemon.calls
        if name in ("Store", "Load")
        for job in request.jobs
    ]
    assert jobs == list(range(1, 11))


def test_bad_jobs_fail_alone_and_at_once(daemon: ScriptedDaemon, client: Client) -> None:
    bad = [
        client.store([key(1), key(1)], [0, 1]),
        client.store([key(1), key(2)], [0, 0]),
        client.store([key(1)], [64]),
        client.store([key(1)], [-1]),
        client.store([b"1234"], [0]),
        client.store([bytes(257)], [0]),
        client.store([key(1)], [0, 1]),
    ]
    assert [r.job_id for r in results(client, 7)] == bad
    assert client.counters["jobs_not_sent_invalid"] == 7
    empty = client.load([], [])
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes, result.success) == (empty, (), True)
    assert not daemon.requests("Store")


@pytest.mark.parametrize(("max_keys", "max_bytes"), [(20_000, 4 << 20), (1_000_000, 1 << 20)])
def test_G07_large_lookups_are_split(
    daemon: ScriptedDaemon, make_client: Callable[..., Client], max_keys: int, max_bytes: int
) -> None:
    daemon.limits = types_pb2.Limits()
    daemon.limits.CopyFrom(DEFAULT_LIMITS)
    daemon.limits.max_keys_per_request = max_keys
    daemon.limits.max_message_bytes = max_bytes
    client = make_client(lookup_timeout_s=30)
    assert client.wait_attached(10)
    keys = [n.to_bytes(64, "big") for n in range(70_000)]
    daemon.objects = dict.fromkeys(keys[::7], b"")
    client.lookup(keys)
    (reply,) = replies(client, 1, timeout=30)
    expected = [Presence.ABSENT if n % 7 else Presence.PRESENT for n in range(70_000)]
    assert list(reply.verdicts) == expected
    requests = daemon.requests("Lookup")
    assert len(requests) > 1
    assert all(request.ByteSize() <= max_bytes for request in requests)
    assert all(sum(len(g.keys) for g in request.groups) <= max_keys for request in requests)


def test_G07_large_jobs_are_split_and_reported_once(
    daemon: ScriptedDaemon, make_client: Callable[..., Client], region: Region
) -> None:
    daemon.limits = types_pb2.Limits()
    daemon.limits.CopyFrom(DEFAULT_LIMITS)
    daemon.limits.max_keys_per_request = 50
    daemon.limits.max_bytes_per_request = 10 * region.stride
    daemon.limits.max_jobs_per_request = 2
    client = make_client()
    assert client.wait_attached(10)
    job = client.store([key(n) for n in range(64)], range(64))
    small = [client.store([key(100 + n)], [n]) for n in range(5)]
    got = {r.job_id: r for r in results(client, 6)}
    assert set(got) == {job, *small}
    assert got[job].outcomes == (Outcome.STORED,) * 64
    assert got[job].transferred_bytes == 64 * region.stride
    for request in daemon.requests("Store"):
        assert len(request.jobs) <= 2
        assert sum(len(job.keys) for job in request.jobs) <= 10


def test_J12_full_queue_drops_and_counts(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    daemon.delays["Store"] = 0.5
    client = make_client(max_queued_jobs=1)
    assert client.wait_attached(10)
    client.store([key(1)], [1])
    eventually(lambda: daemon.requests("Store"))
    client.store([key(2)], [2])
    client.store([key(3)], [3])
    got = results(client, 3)
    assert sum(r.outcomes == (Outcome.NOT_SENT,) for r in got) == 1
    assert client.counters["jobs_not_sent_queue_full"] == 1
    assert client.counters["store_chunks_not_sent"] == 1


def test_loads_overtake_stores_that_wait(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    daemon.limits = types_pb2.Limits()
    daemon.limits.CopyFrom(DEFAULT_LIMITS)
    daemon.limits.max_jobs_per_request = 1
    daemon.delays["Store"] = 0.2
    client = make_client()
    assert client.wait_attached(10)
    for number in range(6):
        client.store([key(number)], [number])
    eventually(lambda: daemon.requests("Store"))
    client.load([key(50)], [20])
    results(client, 7)
    names = [name for name, _ in daemon.calls if name in ("Store", "Load")]
    assert names.index("Load") <= 2


def test_open_jobs_stay_below_the_daemons_limit(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    daemon.limits = types_pb2.Limits()
    daemon.limits.CopyFrom(DEFAULT_LIMITS)
    daemon.limits.max_open_jobs = 3
    daemon.holding = True
    client = make_client()
    assert client.wait_attached(10)
    for number in range(10):
        client.store([key(number)], [number])
    eventually(lambda: sum(len(r.jobs) for r in daemon.requests("Store")) >= 3)
    assert sum(len(r.jobs) for r in daemon.requests("Store")) == 3
    daemon.release()
    results(client, 10)


def test_P04_two_clients_in_one_process(
    make_client: Callable[..., Client], daemon: ScriptedDaemon
) -> None:
    first, second = make_client(), make_client()
    assert first.wait_attached(10)
    assert second.wait_attached(10)
    assert len(daemon.sessions) == 2


def test_close_half_closes_and_waits(daemon: ScriptedDaemon, client: Client) -> None:
    session = daemon.sessions[0]
    assert client.close(timeout_s=10)
    assert session.half_closed.is_set()
    assert client.state is ClientState.CLOSED
    client.store([key(1)], [1])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.NOT_SENT,)
    assert client.close()


def test_close_sends_no_job_that_waits(daemon: ScriptedDaemon, client: Client) -> None:
    daemon.delays["Store"] = 0.5
    client.store([key(0)], [0])
    eventually(lambda: daemon.requests("Store"))
    for number in range(1, 4):
        client.store([key(number)], [number])
    assert client.close(timeout_s=10)
    assert client.counters["jobs_not_sent_closed"] == 3
    assert sum(len(request.jobs) for request in daemon.requests("Store")) == 1


def test_import_starts_no_thread_and_pulls_in_no_vllm() -> None:
    script = (
        "import sys, threading, kvferry_client\n"
        "assert threading.active_count() == 1\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "unwanted = {'vllm', 'torch', 'numpy', 'nixl', 'boto3', 'kvferry_server'}\n"
        "assert not loaded & unwanted, loaded\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_counters_all_exist_from_the_start(client: Client) -> None:
    before = set(client.counters)
    client.store([key(1)], [1])
    client.load([key(2)], [2])
    results(client, 2)
    client.lookup([key(1)])
    replies(client, 1)
    assert set(client.counters) == before


@pytest.mark.parametrize("length", [120])
def test_G09_long_socket_path_is_refused_with_the_limit(region: Region, length: int) -> None:
    with pytest.raises(ValueError, match="107"):
        Client("/" + "x" * length, region.view, namespace="n", engine_id="e")
