"""Nobody but the daemon's own memory knows the keys, by whichever way they came in."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.harness import GUARD_SECONDS, Daemon, environment
from tests.e2e.inspection import pids_that_know
from tests.support.fault_server import Fault, FaultServer
from tests.support.processes import free_ports
from tests.support.token_service import token_service

from .reflected import everything_said

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look into processes")
LACKING = "-sys_ptrace,-perfmon,-sys_admin"
"""CAP_PERFMON and CAP_SYS_ADMIN too let a process read the environment of another."""
NO_PTRACE = ["setpriv", "--bounding-set", LACKING, "--inh-caps", LACKING, "--"]


@dataclass
class Canary:
    """Keys that exist nowhere else, and the daemon's environment that leads to them."""

    environment: dict[str, str]
    texts: dict[str, str]


def new_keys() -> dict[str, str]:
    return {
        "access key": "AKIA" + secrets.token_hex(8).upper(),
        "secret key": secrets.token_hex(20),
        "session token": secrets.token_hex(60),
    }


def by_environment(_root: Path, _stack: ExitStack) -> Canary:
    keys = new_keys()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return Canary(dict(zip(names, keys.values(), strict=True)), keys)


def keys_file(root: Path, section: str) -> tuple[Path, dict[str, str]]:
    keys = new_keys()
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    lines = [f"{name} = {text}" for name, text in zip(names, keys.values(), strict=True)]
    path = root / f"keys-{section.replace(' ', '-')}"
    path.write_text("\n".join([f"[{section}]", *lines, ""]))
    return path, keys


def by_shared_file(root: Path, _stack: ExitStack) -> Canary:
    path, keys = keys_file(root, "default")
    return Canary({"AWS_SHARED_CREDENTIALS_FILE": str(path)}, keys)


def by_profile(root: Path, _stack: ExitStack) -> Canary:
    path, keys = keys_file(root, "profile store")
    return Canary({"AWS_CONFIG_FILE": str(path), "AWS_PROFILE": "store"}, keys)


def by_web_identity(root: Path, stack: ExitStack) -> Canary:
    keys = new_keys()
    service = stack.enter_context(token_service())
    service.keys = (keys["access key"], keys["secret key"], keys["session token"])
    (root / "token").write_text(keys.setdefault("web identity", secrets.token_hex(60)))
    return Canary(service.environment(str(root / "token")), keys)


WAYS = [by_environment, by_shared_file, by_profile, by_web_identity]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start_daemon(
    root: Path, server: FaultServer, canary: Canary, stack: ExitStack, port: int, prefix=()
) -> Daemon:
    (root / "config.toml").write_text("[timeouts]\nhard_deadline_seconds = 15\n")
    variables = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": server.endpoint_url}
    daemon = Daemon(
        root,
        "--config",
        str(root / "config.toml"),
        "--store-url",
        f"s3://{server.bucket}/canary",
        "--log-level",
        "debug",
        "--http-listen",
        f"127.0.0.1:{port}",
        env=environment(**variables, **canary.environment, NIXL_LOG_LEVEL="DEBUG"),
        prefix=prefix,
    )
    stack.callback(daemon.kill)
    return daemon


def start_engine(daemon: Daemon, stack: ExitStack, prefix=()) -> subprocess.Popen[str]:
    engine = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.secrets.engine_process", str(daemon.sockets)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    stack.enter_context(engine)
    stack.callback(engine.kill)
    return engine


def pages(port: int) -> bytes:
    found = b""
    for path in ("/metrics", "/healthz", "/readyz", "/"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as page:
                found += page.read()
        except urllib.error.HTTPError as error:
            with error:
                found += error.read()
    return found


def processes_seen(daemon_pid: int) -> bytes:
    """The environment and arguments of every process but the daemon."""
    found = b""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == daemon_pid:
            continue
        for name in ("environ", "cmdline"):
            try:
                found += (entry / name).read_bytes()
            except OSError:
                continue
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_canary_is_found_in_the_daemons_memory_only(
    way: Callable[[Path, ExitStack], Canary], tmp_path: Path, stack: ExitStack
):
    server = stack.enter_context(FaultServer())
    canary = way(tmp_path, stack)
    [port] = free_ports(1)
    daemon = start_daemon(tmp_path, server, canary, stack, port)
    daemon.wait_ready()
    engine = start_engine(daemon, stack)
    said = {"engine, stores": engine.stdout.readline().encode()}
    server.add(Fault(status=403, code="InvalidAccessKeyId"))
    engine.stdin.write("\n")
    engine.stdin.flush()
    said["engine, refused loads"] = engine.stdout.readline().encode()
    for name in ("kvferry.sock", "admin.sock"):
        said |= everything_said(daemon.sockets / name)
    assert len(said) > 12
    said["pages"] = pages(port)
    said["processes"] = processes_seen(daemon.process.pid)
    engine_knows = {what: pids_that_know([engine.pid], text) for what, text in canary.texts.items()}
    daemon_knows = {
        what: pids_that_know([daemon.process.pid], text) for what, text in canary.texts.items()
    }
    said["daemon's log"] = daemon.log.encode()
    assert b"refuses the credentials" in said["daemon's log"]
    engine.stdin.close()
    said["engine, to its end"] = engine.stdout.read().encode()
    assert engine.wait(GUARD_SECONDS) == 0
    server.clear()
    daemon.terminate()
    said["daemon's log, to its end"] = daemon.log.encode()
    hits = [
        (where, what)
        for what, text in canary.texts.items()
        for where in said
        if text.encode() in said[where]
    ]
    assert hits == []
    assert not any(engine_knows.values())
    daemon_knows.pop("web identity", None)
    assert all(daemon_knows.values()), "a scanner that finds nothing there proves nothing"


def test_a_process_of_the_same_uid_without_the_right_cannot_look(tmp_path: Path, stack: ExitStack):
    server = stack.enter_context(FaultServer())
    canary = by_shared_file(tmp_path, stack)
    daemon = start_daemon(tmp_path, server, canary, stack, free_ports(1)[0], NO_PTRACE)
    daemon.wait_ready()
    engine = start_engine(daemon, stack, NO_PTRACE)
    engine.stdout.readline()
    text = canary.texts["secret key"]

    def scan(pid: int, *prefix: str) -> int:
        command = [*prefix, sys.executable, "-m", "tests.secrets.scan", str(pid)]
        root = Path(__file__).parents[2]
        return subprocess.run(command, input=text, text=True, cwd=root, check=False).returncode

    assert scan(daemon.process.pid) == 0, "with the right it finds the key"
    assert scan(daemon.process.pid, *NO_PTRACE) == 3
    assert scan(engine.pid, *NO_PTRACE) == 1, "it may look into others of its uid"
    for name in ("environ", "maps", "mem"):
        command = [*NO_PTRACE, "head", "-c1", f"/proc/{daemon.process.pid}/{name}"]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Permission denied" in refused.stderr, name
