"""The servers of the tests keep their own promises."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvferry_server.adapters.s3_client import open_client
from kvferry_server.adapters.s3_types import Credentials, S3Settings
from tests.support.fault_server import Fault, FaultServer
from tests.support.processes import listens
from tests.support.s3_servers import started

ROOT = Path(__file__).parents[2]

DIES = """
import os, signal
from tests.support.fault_server import FaultServer
from tests.support.s3_servers import started
with FaultServer() as fault, started("localbucket") as server:
    print(fault.pid, *server.pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_servers_end_with_the_test_run_even_if_it_is_killed(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DIES]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(each) for each in done.stdout.split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_killed_server_comes_back_with_its_data():
    with started("localbucket") as server:
        client = server.client()
        client.put_object(Bucket=server.bucket, Key="a", Body=b"data")
        server.kill()
        assert not listens(server.port)
        port = server.port
        server.start()
        assert server.port == port
        assert client.head_object(Bucket=server.bucket, Key="a")["ContentLength"] == 4
        client.close()
        directory = server.directory
    assert not directory.exists()
    assert not listens(port)


@pytest.fixture
def objects(fault_server):
    """A boto3 client of the fault server."""
    settings = S3Settings(fault_server.bucket, endpoint_url=fault_server.endpoint_url)
    client = open_client(settings, Credentials("key", "secret"), "path")
    yield client
    client.close()


def test_a_hanging_request_goes_on_when_its_rule_is_removed(fault_server, objects):
    fault_server.put("k", bytes(range(100)))
    rule = fault_server.add(Fault(method="GET", hang="body"))
    answer = objects.get_object(Bucket=fault_server.bucket, Key="k")
    assert fault_server.counters().in_flight == 1
    fault_server.remove(rule)
    assert answer["Body"].read() == bytes(range(100))


def test_skip_and_times_bound_a_fault(fault_server, objects):
    fault_server.put("k", b"x")
    fault_server.add(Fault(method="HEAD", key="k", skip=1, times=2, status=503))
    statuses = []
    for _ in range(4):
        try:
            answer = objects.head_object(Bucket=fault_server.bucket, Key="k")
        except objects.exceptions.ClientError as error:
            answer = error.response
        statuses.append(answer["ResponseMetadata"]["HTTPStatusCode"])
    assert statuses == [200, 503, 503, 200]
    assert [each.status for each in fault_server.requests(key="k")] == statuses


def test_sizes_and_ranges(fault_server, objects):
    fault_server.put("k", b"0123456789")
    part = objects.get_object(Bucket=fault_server.bucket, Key="k", Range="bytes=2-4")
    assert part["Body"].read() == b"234"
    assert part["ContentRange"] == "bytes 2-4/10"
    fault_server.add(Fault(size=12))
    assert objects.head_object(Bucket=fault_server.bucket, Key="k")["ContentLength"] == 12
    whole = objects.get_object(Bucket=fault_server.bucket, Key="k")
    assert whole["Body"].read() == b"0123456789\0\0"


def test_close_each_ends_every_connection():
    with FaultServer(close_each=True) as server:
        server.put("k", b"x")
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(f"GET /{server.bucket}/k HTTP/1.1\r\n\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
                assert answer.endswith(b"\r\n\r\nx")
        assert len({each.connection for each in server.requests()}) == 3
