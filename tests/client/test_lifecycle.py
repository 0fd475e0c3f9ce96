"""Daemons that are absent, late, slow, dying or restarted, and the channel's settings."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import offload_pb2
from kvferry_client import Client, ClientState, Outcome, Presence
from kvferry_client.channel import CHANNEL_OPTIONS, DaemonChannel

from .conftest import Region, eventually, key, replies, results
from .scripted import ScriptedDaemon


def test_G04_authority_is_localhost(daemon: ScriptedDaemon, client: Client) -> None:
    client.lookup([key(1)])
    replies(client, 1)
    client.store([key(1)], [1])
    results(client, 1)
    assert len(daemon.authorities) >= 3
    assert set(daemon.authorities) == {"localhost"}


def test_G05_http_proxy_is_ignored(
    daemon: ScriptedDaemon, make_client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    del daemon
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert dict(CHANNEL_OPTIONS)["grpc.enable_http_proxy"] == 0
    client = make_client()
    client.lookup([key(1)])
    assert client.wait_attached(10)
    client.store([key(1)], [1])
    (result,) = results(client, 1)
    assert result.success


def test_G06_keepalive_agrees_with_the_server(socket_dir: Path) -> None:
    """Scaled: pings each second, the server's minimum in the shipped proportion or less."""
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] >= 5_000, "the daemon permits one ping each 5 s"
    options["grpc.keepalive_time_ms"] = 1_000
    daemon = ScriptedDaemon(socket_dir)
    daemon.server_options = [
        ("grpc.http2.min_ping_interval_without_data_ms", 900),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    daemon.delays["Lookup"] = 5
    daemon.start()
    channel = DaemonChannel(str(socket_dir), tuple(options.items()))
    session = offload_pb2.LookupRequest()
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            channel.stub().Lookup(session, timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        time.sleep(2)
        daemon.delays["Lookup"] = 0
    channel.close()
    daemon.die()


def test_G10_back_within_two_seconds(socket_dir: Path, make_client: Callable[..., Client]) -> None:
    client = make_client()
    end = time.monotonic() + 13
    while time.monotonic() < end:
        client.lookup([key(1)])
        assert replies(client, 1)[0].verdicts == (Presence.UNKNOWN,)
        time.sleep(0.1)
    daemon = ScriptedDaemon(socket_dir)
    daemon.objects[key(1)] = b""
    daemon.start()
    began = time.monotonic()

    def hit() -> bool:
        client.lookup([key(1)])
        client.wait_results(0.1)
        return any(r.verdicts == (Presence.PRESENT,) for r in client.take_lookups())

    eventually(hit)
    assert time.monotonic() - began <= 2.0
    daemon.die()


def test_G10_channel_alone_is_back_within_two_seconds(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.holding = True
    client.store([key(1)], [1])
    eventually(lambda: daemon.sessions[0].held)
    daemon.stop_grpc()
    time.sleep(8)
    daemon.start_grpc()
    began = time.monotonic()
    daemon.release()
    (result,) = results(client, 1)
    assert time.monotonic() - began <= 2.5
    assert result.success


def test_G14_fast_restart_reattaches(socket_dir: Path, make_client: Callable[..., Client]) -> None:
    first = ScriptedDaemon(socket_dir).start()
    client = make_client()
    assert client.wait_attached(10)
    first.holding = True
    job = client.store([key(1)], [1])
    eventually(lambda: first.sessions[0].held)
    first.die()
    second = ScriptedDaemon(socket_dir).start()
    (result,) = results(client, 1)
    assert (result.job_id, result.outcomes) == (job, (Outcome.LOST,))
    assert client.wait_attached(2)
    client.store([key(2)], [2])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.STORED,)
    assert key(2) in second.objects
    second.die()


def test_G15_idle_client_stays_attached(daemon: ScriptedDaemon, client: Client) -> None:
    session = daemon.sessions[0]
    time.sleep(3)
    client.store([key(1)], [1])
    results(client, 1)
    client.load([key(1)], [2])
    (result,) = results(client, 1)
    assert result.outcomes == (Outcome.LOADED,)
    assert daemon.sessions == [session]


def test_G16_lookup_only_client_recovers(
    socket_dir: Path, make_client: Callable[..., Client]
) -> None:
    daemon = ScriptedDaemon(socket_dir)
    daemon.objects[key(1)] = b""
    daemon.start()
    client = make_client()
    assert client.wait_attached(10)
    client.lookup([key(1)])
    assert replies(client, 1)[0].verdicts == (Presence.PRESENT,)
    daemon.die()
    eventually(lambda: client.state is ClientState.CONNECTING)
    client.lookup([key(1)])
    assert replies(client, 1)[0].verdicts == (Presence.UNKNOWN,)
    daemon.start()
    assert client.wait_attached(2)
    client.lookup([key(1)])
    assert replies(client, 1)[0].verdicts == (Presence.PRESENT,)
    daemon.die()


def test_O05_no_daemon_means_misses_and_counted_failures(
    make_client: Callable[..., Client],
) -> None:
    client = make_client()
    client.lookup([key(1), key(2)])
    assert replies(client, 1)[0].verdicts == (Presence.UNKNOWN,) * 2
    client.store([key(1)], [1])
    client.load([key(1)], [1])
    assert [r.outcomes for r in results(client, 2)] == [(Outcome.NOT_SENT,)] * 2
    assert client.counters["jobs_not_sent_no_session"] == 2
    eventually(lambda: "lease.sock" in client.last_error)
    assert client.drain(timeout_s=1)


def test_refused_region_is_said_and_tried_again(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    daemon.refuse = (7, "PEER_NOT_ALLOWED", "uid 1234 may not attach")
    client = make_client()
    eventually(lambda: "uid 1234" in client.last_error)
    assert client.counters["attach_refused"] >= 1
    assert client.state is ClientState.CONNECTING
    daemon.refuse = None
    assert client.wait_attached(5)
    assert client.last_error == ""


def test_daemon_that_hangs_up_or_talks_nonsense_is_survived(
    socket_dir: Path, make_client: Callable[..., Client]
) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(socket_dir / "lease.sock"))
    listener.listen()

    answers = [b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\3\xff\xff\xff", b"\0\0\0\2\x12\0"]

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = make_client()
    thread.join(20)
    listener.close()
    (socket_dir / "lease.sock").unlink()
    assert client.state is ClientState.CONNECTING
    daemon = ScriptedDaemon(socket_dir).start()
    assert client.wait_attached(5)
    daemon.die()


def test_L04_slow_lookup_is_a_miss_at_its_own_deadline(
    daemon: ScriptedDaemon, make_client: Callable[..., Client]
) -> None:
    daemon.delays["Lookup"] = 2
    daemon.objects[key(1)] = b""
    client = make_client(lookup_timeout_s=0.5)
    assert client.wait_attached(10)
    began = time.monotonic()
    client.lookup([key(1)])
    (reply,) = replies(client, 1)
    assert time.monotonic() - began >= 0.4
    assert reply.verdicts == (Presence.UNKNOWN,)
    assert client.counters["lookups_expired"] == 1
    timeout = daemon.requests("Lookup")[0].timeout
    assert 0 < timeout.seconds + timeout.nanos / 1e9 <= 0.5


def test_lookup_error_is_unknown_and_not_cached(daemon: ScriptedDaemon, client: Client) -> None:
    daemon.objects[key(1)] = b""
    daemon.fail("Lookup", grpc.StatusCode.INTERNAL)
    client.lookup([key(1)])
    assert replies(client, 1)[0].verdicts == (Presence.UNKNOWN,)
    client.lookup([key(1)])
    assert replies(client, 1)[0].verdicts == (Presence.PRESENT,)


def test_J03_expired_jobs_are_failed_results(daemon: ScriptedDaemon, client: Client) -> None:
    daemon.holding = True
    job = client.load([key(1)], [1])
    eventually(lambda: daemon.sessions[0].held)
    with daemon.changed:
        session = daemon.sessions[0]
        session.held.clear()
        daemon._report(session, 1, 2, [int(Outcome.EXPIRED)])
        daemon.changed.notify_all()
    (result,) = results(client, 1)
    assert (result.job_id, result.success, result.outcomes) == (job, False, (Outcome.EXPIRED,))


@pytest.mark.parametrize("what", ["absent", "hung", "grpc_gone"])
def test_J10_submitting_never_waits(
    socket_dir: Path, make_client: Callable[..., Client], what: str
) -> None:
    daemon = None
    client = make_client()
    if what != "absent":
        daemon = ScriptedDaemon(socket_dir).start()
        assert client.wait_attached(10)
        for method in ("Store", "Load", "Lookup", "Poll"):
            daemon.delays[method] = 2
        if what == "grpc_gone":
            daemon.stop_grpc()
    waited = 0.0
    for number in range(500):
        began, cpu = time.monotonic(), time.thread_time()
        client.lookup([key(number)])
        client.store([key(number)], [number % 64])
        client.load([key(1000 + number)], [number % 64])
        client.take_results()
        client.take_lookups()
        assert client.state is not None
        waited = max(waited, time.monotonic() - began - (time.thread_time() - cpu))
    assert waited < 1.0
    if daemon is not None:
        daemon.die()


def test_threads_start_late_and_only_once(
    socket_dir: Path, region: Region, clients: list[Client]
) -> None:
    before = set(threading.enumerate())
    client = Client(socket_dir, region.view, namespace="n", engine_id="e")
    clients.append(client)
    assert set(threading.enumerate()) <= before
    assert client.state is ClientState.IDLE
    for _ in range(3):
        client.lookup([key(1)])
    started = {t for t in threading.enumerate() if t.name.startswith("kvferry-")} - before
    assert len(started) == 3
    assert all(thread.daemon for thread in started)
    assert client.close(timeout_s=5)
    eventually(lambda: not any(thread.is_alive() for thread in started))


def test_G14_many_restarts_leave_descriptors_and_threads_flat(
    socket_dir: Path, make_client: Callable[..., Client]
) -> None:
    """The server's own descriptors are in this process too; they are gone when it is."""
    client = make_client()

    def one_life(number: int) -> None:
        daemon = ScriptedDaemon(socket_dir).start()
        assert client.wait_attached(5)
        client.store([key(number)], [1])
        client.lookup([key(number)])
        results(client, 1)
        replies(client, 1)
        daemon.die()
        eventually(lambda: client.state is ClientState.CONNECTING)

    def mine() -> int:
        return sum(thread.name.startswith("kvferry-") for thread in threading.enumerate())

    for number in range(3):
        one_life(number)
    time.sleep(0.5)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads, workers = threading.active_count(), mine()
    for number in range(3, 15):
        one_life(number)
    eventually(lambda: threading.active_count() <= threads + 3)
    assert mine() == workers
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 5
    assert client.counters["sessions_attached"] == 15


def test_daemon_that_accepts_but_does_not_answer_is_waited_for(
    socket_dir: Path, make_client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry_client.lease.REMIND_SECONDS", 0.2)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(socket_dir / "lease.sock"))
    listener.listen()
    client = make_client()
    first, _ = listener.accept()
    assert first.recv(65536)
    time.sleep(1)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    client.store([key(1)], [1])
    assert results(client, 1)[0].outcomes == (Outcome.NOT_SENT,)
    listener.close()
    (socket_dir / "lease.sock").unlink()
    daemon = ScriptedDaemon(socket_dir).start()
    first.close()
    assert client.wait_attached(5)
    daemon.die()


def test_a_closed_channel_stays_closed(daemon: ScriptedDaemon, client: Client) -> None:
    channel = client._shared.session.channel
    daemon.end_lease(daemon.sessions[0])
    eventually(lambda: client._shared.session is None or client._shared.session.channel != channel)
    eventually(lambda: channel._closed)
    with pytest.raises(ValueError, match="closed"):
        channel.stub()
