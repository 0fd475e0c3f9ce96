"""`kvferry status` and `kvferry health` against daemons that live, are gone or hang."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest

from kvferry.v1 import admin_pb2, types_pb2
from kvferry_server.cli import watch
from kvferry_server.cli.status_text import render
from tests.cli.harness import COMMAND, attached, environment, key, kvferry, result_of, wait_for
from tests.support.fault_server import Fault


def test_status_of_a_live_daemon(serve, s3):
    daemon = serve("--store-url", f"s3://{s3.bucket}/p", env=environment(**s3.environment()))
    daemon.wait_ready()
    idle = kvferry("status", "--socket-dir", str(daemon.sockets))
    assert idle.status == 0
    assert "none: no engine has attached" in idle.out
    assert f"store     s3://{s3.bucket}/p: ready (path addressing" in idle.out
    rule = s3.add(Fault(method="PUT", key="*.bin", delay=30))
    with attached(daemon.sockets) as client:
        job = client.store([key(1), key(2)], [0, 1])
        wait_for(lambda: s3.counters().in_flight == 2)
        busy = kvferry("status", "--socket-dir", str(daemon.sockets)).out
        found = json.loads(kvferry("status", "--json", "--socket-dir", str(daemon.sockets)).out)
        s3.remove(rule)
        assert result_of(client, job).success
    assert "chunks    2 of 50 in transfer" in busy
    assert "engine-of-test" in busy
    assert "store" in busy.split("request\n")[1]
    assert found["server"]["active_chunks"] == 2
    assert [each["engine_id"] for each in found["sessions"]] == ["engine-of-test"]
    assert [each["kind"] for each in found["jobs"]] == ["JOB_KIND_STORE"]
    assert "token" not in json.dumps(found)


def test_status_and_health_without_a_daemon(tmp_path):
    for command in (["status"], ["status", "--json"], ["health"]):
        done = kvferry(*command, "--socket-dir", str(tmp_path))
        assert (done.status, done.out) == (1, "")
        assert f"no daemon listens at {tmp_path}/" in done.err
        assert "there is no such socket" in done.err
        assert "Traceback" not in done.err


def test_O03_a_stale_socket_is_not_healthy(serve):
    daemon = serve()
    daemon.wait_serving()
    assert kvferry("health", "--socket-dir", str(daemon.sockets)).status == 0
    daemon.kill()
    assert (daemon.sockets / "kvferry.sock").is_socket()
    for command in ("health", "status"):
        done = kvferry(command, "--socket-dir", str(daemon.sockets))
        assert (done.status, done.out) == (1, "")
        assert "nobody answers" in done.err


def test_a_hanging_daemon_is_not_healthy(serve):
    daemon = serve()
    daemon.wait_serving()
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        done = kvferry("health", "--socket-dir", str(daemon.sockets))
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert (done.status, done.out) == (1, "")
    assert "does not answer within" in done.err


def test_health_ignores_a_proxy_and_odd_characters_in_the_path(serve, tmp_path):
    root = tmp_path / "a b%20ü#?"
    root.mkdir()
    daemon = serve(root=root)
    daemon.wait_serving()
    env = environment(http_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9")
    done = kvferry("health", "--socket-dir", str(daemon.sockets), env=env)
    assert (done.status, done.out) == (0, "serving\n"), done.err


def test_watch_survives_a_restart_and_ends_with_ctrl_c(serve, tmp_path):
    daemon = serve()
    daemon.wait_ready()
    out = tmp_path / "watch.out"
    with out.open("wb") as stream:
        watch = subprocess.Popen(
            [*COMMAND, "status", "--watch", "--json", "--socket-dir", str(daemon.sockets)],
            env=environment(),
            stdout=stream,
            stderr=subprocess.PIPE,
        )
    try:

        def seen() -> list[dict]:
            return [json.loads(line) for line in out.read_text().splitlines()]

        wait_for(lambda: any("server" in each for each in seen()))
        daemon.kill()
        wait_for(lambda: "no daemon listens" in seen()[-1].get("error", ""))
        serve().wait_ready(starts=2)
        wait_for(lambda: "server" in seen()[-1])
        boots = {each["server"]["boot_id"] for each in seen() if "server" in each}
        assert len(boots) == 2
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=30)
        assert (watch.returncode, errors) == (0, b"")
    finally:
        watch.kill()
        watch.wait()


def test_the_words_of_a_busy_degraded_daemon():
    server = admin_pb2.GetServerInfoResponse(
        version="0.1.0",
        boot_id="ab" * 16,
        store=admin_pb2.StoreStatus(
            url="s3://b/p",
            problem="bucket: \x1b[2Jmissing",
            read_breaker=admin_pb2.BREAKER_STATE_OPEN,
            write_breaker=admin_pb2.BREAKER_STATE_HALF_OPEN,
            max_active_chunks=50,
        ),
        stores_paused=True,
        loads_paused=True,
        counters={"chunks_store_shed": 12_345, "jobs_load": 0},
    )
    now = 1_000_000.0
    session = admin_pb2.SessionInfo(
        session_id="cd" * 16, engine_id="e\nvil", slots=10, slot_bytes=1 << 20, closing=True
    )
    session.attach_time.FromSeconds(int(now) - 61)
    jobs = [
        admin_pb2.JobInfo(job_id=n, kind=types_pb2.JOB_KIND_LOAD, request_id=f"r{n}")
        for n in range(13)
    ]
    server.start_time.FromSeconds(int(now) - 3600)
    text = render(server, [session], jobs, now)
    assert "up 1 h 0 min" in text
    assert "NOT READY" in text
    assert "problem   bucket: \\x1b[2Jmissing" in text
    assert "reading OPEN, writing half-open" in text
    assert "paused    stores and loads" in text
    assert "e\\nvil" in text
    assert "closing" in text
    assert "1 MiB" in text
    assert "1 min 1 s" in text
    assert "and 3 more jobs" in text
    assert "chunks_store_shed  12,345" in text
    assert "jobs_load" not in text


def test_a_clock_that_runs_behind_shows_no_negative_times():
    server = admin_pb2.GetServerInfoResponse(version="1")
    server.start_time.FromSeconds(int(time.time()) + 100)
    assert "up 0 s" in render(server, [], [], time.time())


@pytest.mark.parametrize("columns", [1, 5, 10, 11, 20, 21, 80])
def test_a_watched_status_fits_into_any_terminal(columns):
    text = "store     file:///a/long/name/of/a/directory: ready (one file per object, no fsync)"
    drawn = re.sub(r"\x1b\[[HKJ]", "", watch.fitted(text, columns, 1000))
    assert all(len(line) <= columns for line in drawn.splitlines())
    assert "".join(drawn.split()) == "".join(text.split())
    assert len(watch.fitted(text, columns, 2).splitlines()) <= 2
