"""The daemon as an operator starts and stops it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_client import Outcome
from tests.cli.harness import (
    COMMAND,
    Daemon,
    attached,
    environment,
    key,
    kvferry,
    result_of,
    wait_for,
    works,
)
from tests.support.fault_server import Fault, FaultServer, full_backlog

DOCS = Path(__file__).parents[2] / "docs"


def store_one(daemon: Daemon, number: int = 1) -> None:
    with attached(daemon.sockets) as client:
        result = result_of(client, client.store([key(number)], [0]))
        assert result.outcomes == (Outcome.STORED,)


def test_sigterm_removes_the_sockets_and_ends_with_0(serve):
    daemon = serve()
    daemon.wait_ready()
    assert {each.name for each in daemon.sockets.glob("*.sock")} == {
        "admin.sock",
        "kvferry.sock",
        "lease.sock",
    }
    status, _ = daemon.terminate()
    assert status == 0, daemon.log
    assert list(daemon.sockets.glob("*.sock")) == []
    assert daemon.log.rstrip().endswith("stopped")


def test_sigint_ends_with_0(serve):
    daemon = serve()
    daemon.wait_serving()
    assert daemon.terminate(signal.SIGINT)[0] == 0


def test_N05_twenty_starts_and_stops_each_after_a_store(serve, tmp_path):
    for number in range(20):
        daemon = serve()
        daemon.wait_ready(starts=number + 1)
        store_one(daemon, number)
        assert daemon.terminate()[0] == 0, daemon.log
    assert "Traceback" not in daemon.log
    assert len(list((tmp_path / "store").rglob("*.bin"))) == 20


def test_N05_with_s3_too(serve, s3):
    for number in range(5):
        daemon = serve("--store-url", f"s3://{s3.bucket}/p", env=environment(**s3.environment()))
        daemon.wait_ready(starts=number + 1)
        store_one(daemon, number)
        assert daemon.terminate()[0] == 0, daemon.log
    stored = [name for name in s3.keys() if name.endswith(".bin")]  # noqa: SIM118 no dict
    assert len(stored) == 5


@pytest.mark.parametrize("tool", ["bwrap", "unshare"])
def test_sigterm_as_pid_1_ends_with_0(serve, tool):
    prefix = {
        "bwrap": ["bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--unshare-pid"],
        "unshare": ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
    }[tool]
    if tool == "bwrap":
        prefix += ["--proc", "/proc", "--as-pid-1", "--"]
    if not works([*prefix, "true"]):
        pytest.skip(f"{tool} can't make a pid namespace here")
    daemon = serve(prefix=prefix)
    daemon.wait_ready()
    store_one(daemon)
    [first] = (
        Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    )
    command = Path(f"/proc/{first}/cmdline").read_bytes()
    assert b"kvferry_server.cli" in command
    subprocess.run(["kill", "-TERM", first], check=True)
    assert daemon.process.wait(60) == 0, daemon.log
    assert daemon.log.rstrip().endswith("stopped")


def test_a_log_that_nobody_reads_holds_nothing_up(tmp_path):
    """As when the reader of a container's stderr has stopped: the pipe is full."""
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 8_192)
    command = [*COMMAND, "serve", "--log-level", "debug", "--http-listen", ""]
    command += ["--socket-dir", str(tmp_path / "run"), "--store-url", (tmp_path / "s").as_uri()]
    daemon = subprocess.Popen(
        command, env=environment(), stdout=writing, stderr=writing, start_new_session=True
    )
    os.close(writing)
    try:
        with attached(tmp_path / "run") as client:
            for number in range(2 * size // LEAST_LINE_BYTES):
                client.lookup([key(number)])
                wait_for(lambda: bool(client.take_lookups()))
            assert result_of(client, client.store([key(1)], [0])).outcomes == (Outcome.STORED,)
            os.read(reading, size)
            wait_for(lambda: b" lines were lost" in os.read(reading, size))
            daemon.terminate()
            assert daemon.wait(30) == 0
    finally:
        os.close(reading)
        daemon.kill()
        daemon.wait()


LEAST_LINE_BYTES = 60
"""Of what the daemon logs of a lookup at level DEBUG."""


def test_O01_sigterm_before_anything_is_loaded(tmp_path):
    program = (
        "import os, signal, sys, types\n"
        "def run_daemon(*_, **__): os.kill(os.getpid(), signal.SIGTERM)\n"
        "wire = types.ModuleType('wire'); wire.run_daemon = run_daemon\n"
        "sys.modules['kvferry_server.cli.wire'] = wire\n"
        "from kvferry_server.cli.main import main\n"
        "main(['serve', '--socket-dir', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment(), timeout=60, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3, 1.0])
def test_O01_sigterm_while_s3_is_a_black_hole(serve, pause):
    with full_backlog() as port:
        daemon = serve(
            "--store-url",
            "s3://bucket/p",
            env=environment(
                AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{port}",
                AWS_ACCESS_KEY_ID="a",
                AWS_SECRET_ACCESS_KEY="b",
            ),
        )
        wait_for(lambda: b"kvferry_server.cli" in _command_line(daemon))
        _wait_handler(daemon)
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.process.wait(pause or 0.001)
        status, seconds = daemon.terminate()
    assert status == 0, daemon.log
    assert seconds < 10, "the guard; the daemon waits for nothing here"


def _command_line(daemon: Daemon) -> bytes:
    return Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()


def _wait_handler(daemon: Daemon) -> None:
    """Wait until SIGTERM is caught: before that the interpreter itself is starting."""

    def caught() -> bool:
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) & 1 << signal.SIGTERM - 1)

    wait_for(caught)


def test_N02_a_running_put_is_awaited_on_sigterm(serve, s3):
    daemon = serve("--store-url", f"s3://{s3.bucket}/p", env=environment(**s3.environment()))
    daemon.wait_ready()
    s3.add(Fault(method="PUT", key="*.bin", delay=3))
    with attached(daemon.sockets) as client:
        job = client.store([key(1)], [0])
        wait_for(lambda: s3.counters().in_flight > 0)
        daemon.process.terminate()
        assert result_of(client, job).outcomes == (Outcome.STORED,)
    assert daemon.process.wait(60) == 0, daemon.log


@pytest.mark.parametrize("scheme", ["s3://bucket/p", "file://{}/store"])
def test_N04_a_missing_nixl_plugin_is_one_clear_line(tmp_path, scheme):
    (tmp_path / "plugins").mkdir()
    done = kvferry(
        "serve",
        "--socket-dir",
        str(tmp_path / "run"),
        "--http-listen",
        "",
        "--store-url",
        scheme.format(tmp_path),
        env=environment(NIXL_PLUGIN_DIR=str(tmp_path / "plugins")),
    )
    assert done.status != 0
    assert done.err.count("\n") == 1
    assert ("OBJ" if scheme.startswith("s3") else "POSIX") in done.err
    assert "NIXL_PLUGIN_DIR" in done.err
    assert done.seconds < 20, "a guard"


def test_a_second_daemon_on_a_directory_ends_at_once_and_touches_nothing(serve):
    daemon = serve()
    daemon.wait_ready()
    before = sorted((each.name, each.stat().st_ino) for each in daemon.sockets.iterdir())
    done = kvferry("serve", "--socket-dir", str(daemon.sockets), "--http-listen", "")
    assert done.status == 1
    assert done.err.count("\n") == 1
    assert str(daemon.sockets) in done.err
    assert done.seconds < 20, "a guard"
    assert sorted((each.name, each.stat().st_ino) for each in daemon.sockets.iterdir()) == before
    assert kvferry("health", "--socket-dir", str(daemon.sockets)).status == 0


def _documented_configs() -> list[str]:
    blocks = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]:
        blocks += re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    return blocks


def test_S11_the_documented_minimal_config_starts(serve, tmp_path):
    configs = _documented_configs()
    assert configs
    for number, text in enumerate(configs):
        bucket = re.search(r's3://([^/"]+)', text)
        if bucket is None:
            continue
        root = tmp_path / str(number)
        root.mkdir()
        here = text.replace('group = "kvferry"', f'group = "{os.getgid()}"')
        (root / "config.toml").write_text(here)
        with FaultServer(bucket=bucket[1]) as server:
            daemon = serve(
                "--config",
                str(root / "config.toml"),
                root=root,
                env=environment(**server.environment()),
            )
            daemon.wait_ready()
            if 'naming = "vllm"' not in text:  # which takes vLLM's own tier as a client
                store_one(daemon)
            assert daemon.terminate()[0] == 0


def test_settings_reach_the_running_daemon(serve, tmp_path):
    (tmp_path / "config.toml").write_text(
        f'[store]\nurl = "file://{tmp_path}/elsewhere"\n[limits]\nmax_inflight_chunks = 3\n'
        '[sockets]\nmode = "0600"\n'
    )
    daemon = serve("--config", str(tmp_path / "config.toml"))
    daemon.wait_ready()
    assert (daemon.sockets / "kvferry.sock").stat().st_mode & 0o777 == 0o600
    status = json.loads(kvferry("status", "--json", "--socket-dir", str(daemon.sockets)).out)
    assert status["server"]["store"]["url"] == f"file://{tmp_path}/elsewhere"
    assert status["server"]["store"]["max_active_chunks"] == 3


def test_unknown_variables_are_warned_about_and_kubernetes_ones_are_not(serve):
    daemon = serve(
        env=environment(
            KVFERRY_PORT="tcp://10.0.0.1:9477",
            KVFERRY_SERVICE_HOST="10.0.0.1",
            KVFERRY_SOKET_DIR="/x",
        )
    )
    daemon.wait_serving()
    assert "KVFERRY_SOKET_DIR is not a variable of kvferry" in daemon.log
    assert daemon.log.count("WARNING") == 1


def test_json_logs_are_one_object_a_line(serve):
    daemon = serve("--log-format", "json", "--log-level", "debug")
    daemon.wait_ready()
    store_one(daemon)
    daemon.terminate()
    entries = [json.loads(line) for line in daemon.log.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(entries[0])
    assert any("store job 1" in each["message"] for each in entries)


def test_J12_failed_stores_make_few_lines(serve, s3):
    daemon = serve("--store-url", f"s3://{s3.bucket}/p", env=environment(**s3.environment()))
    daemon.wait_ready()
    s3.add(Fault(method="PUT", key="*.bin", status=403, code="AccessDenied"))
    with attached(daemon.sockets) as client:
        for number in range(10):
            result_of(client, client.store([key(number)], [number]))
    status = json.loads(kvferry("status", "--json", "--socket-dir", str(daemon.sockets)).out)
    counters = status["server"]["counters"]
    failed = sum(
        int(count)
        for name, count in counters.items()
        if name.startswith("chunks_store_") and name != "chunks_store_stored"
    )
    assert failed == 10
    assert 1 <= daemon.log.count("chunks failed") <= 3


def test_no_secret_shows_anywhere(serve, s3):
    marker, token, access = "s3cr3tMARKER/abc+1", "t0kenMARKER/xyz", "AKIAMARKERMARKER"
    env = environment(
        **s3.environment()
        | {
            "AWS_SECRET_ACCESS_KEY": marker,
            "AWS_SESSION_TOKEN": token,
            "AWS_ACCESS_KEY_ID": access,
        }
    )
    url = f"s3://{s3.bucket}/p"
    listen = "127.0.0.1:0"
    daemon = serve("--store-url", url, "--log-level", "debug", "--http-listen", listen, env=env)
    daemon.wait_ready()
    seen = [
        kvferry("status", *form, "--socket-dir", str(daemon.sockets), env=env)
        for form in ([], ["--json"])
    ]
    s3.add(Fault(key="*.bin", status=403, code="InvalidAccessKeyId"))
    with attached(daemon.sockets) as client:
        result_of(client, client.store([key(1)], [0]))
        result_of(client, client.load([key(2)], [0]))
    s3.add(Fault(status=403, code="SignatureDoesNotMatch"))
    seen += [kvferry("check", url, *form, env=env) for form in ([], ["--json"])]
    assert [each.status for each in seen] == [0, 0, 14, 14]
    seen.append(kvferry("serve", "--store-url", f"s3://{marker}@b/p", env=env))
    seen.append(kvferry("health", "--socket-dir", str(daemon.sockets), env=env))
    assert daemon.terminate()[0] == 0
    everything = daemon.log + "".join(each.out + each.err for each in seen)
    for secret in (marker, token, access):
        assert secret not in everything
    assert marker.split("/", maxsplit=1)[0] not in everything
    for request in s3.requests():
        assert access in request.headers.get(
            "Authorization", request.headers.get("authorization", access)
        )


def test_the_log_level_changes_at_run_time(serve):
    daemon = serve()
    daemon.wait_ready()
    with grpc.insecure_channel(
        f"unix:{daemon.sockets}/admin.sock", [("grpc.default_authority", "localhost")]
    ) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        answer = stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="debug"), timeout=10)
        assert answer.previous_level == "info"
    store_one(daemon)
    wait_for(lambda: "DEBUG" in daemon.log and "store job 1" in daemon.log)
