"""The HTTP listener: metrics, health, readiness, and rude visitors."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvferry_client import Outcome, RequestContext
from kvferry_server import __version__
from kvferry_server.adapters.metric_families import FAMILIES
from kvferry_server.adapters.telemetry import Recorder
from kvferry_server.cli import http_listener
from kvferry_server.cli.pages import DaemonPages
from kvferry_server.core.errors import ConfigError
from tests.cli.harness import SLOT_BYTES, attached, environment, key, kvferry, result_of, wait_for
from tests.support.fault_server import Fault
from tests.support.processes import free_ports


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def scrape(port: int) -> dict[str, float]:
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(name: str, **labels: str) -> str:
    """A key of `scrape`."""
    return f"kvferry_{name}{sorted(labels.items())}"


def test_pages_of_a_healthy_daemon(serve, port):
    serve("--http-listen", f"127.0.0.1:{port}").wait_ready()
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ready\n")
    assert get(port, "/readyz?verbose") == (200, "ready\n")
    assert get(port, "/healthz", "HEAD") == (200, "")
    assert get(port, "/nothing") == (404, "Not Found\n")
    assert get(port, "/healthz", "POST")[0] == 405


def test_P01_every_series_is_there_from_the_start(serve, port):
    daemon = serve("--http-listen", f"127.0.0.1:{port}")
    daemon.wait_ready()
    before = scrape(port)
    for family in FAMILIES:
        suffix = "_count" if family.kind == "histogram" else ""
        for values in family.series:
            labels = sorted(zip(family.labels, values, strict=True))
            assert f"{family.full_name}{suffix}{labels}" in before
    with attached(daemon.sockets) as client:
        result_of(client, client.store([key(1)], [0]))
        result_of(client, client.load([key(1), key(2)], [0, 1]))
    after = scrape(port)
    assert before.keys() == after.keys()
    stored = series("chunks_total", operation="store", outcome="stored")
    assert (before[stored], after[stored]) == (0, 1)
    assert after[series("chunks_total", operation="load", outcome="loaded")] == 1
    assert after[series("chunks_total", operation="load", outcome="missing")] == 1
    assert after[series("transferred_bytes_total", operation="store")] == SLOT_BYTES
    assert after[series("queue_wait_seconds_count", operation="load")] == 2
    assert after[series("transfer_duration_seconds_count", operation="store")] == 1
    assert after[series("transfer_duration_seconds_sum", operation="store")] > 0
    assert after[series("store_requests_total", verb="put", outcome="ok")] == 1
    assert after[series("store_requests_total", verb="get", outcome="ok")] == 1
    assert after[series("store_requests_total", verb="get", outcome="not_found")] == 1
    assert after[series("integrity_total", result="verified")] == 1
    assert after[series("rpcs_total", method="Store", code="OK")] == 1
    assert after[series("rpc_duration_seconds_count", method="Load")] == 1
    assert after[series("breaker_state", breaker="read", state="closed")] == 1
    assert after[series("breaker_state", breaker="read", state="open")] == 0
    assert after[series("store_ready")] == 1
    assert after[series("build_info", version=__version__)] == 1
    assert after["process_resident_memory_bytes[]"] > 0


def test_lookups_are_counted_by_verdict_and_source(serve, port):
    daemon = serve("--http-listen", f"127.0.0.1:{port}")
    daemon.wait_ready()
    with attached(daemon.sockets) as client:
        result_of(client, client.store([key(1)], [0]))
        client.lookup([key(1), key(2), key(3)], prefix_ordered=True)
        wait_for(lambda: any(reply.verdicts for reply in client.take_lookups()))
    found = scrape(port)
    assert found[series("lookup_verdicts_total", verdict="present", source="index")] == 1
    assert found[series("lookup_verdicts_total", verdict="absent", source="probe")] == 1
    assert found[series("lookup_verdicts_total", verdict="unknown", source="cutoff")] == 1
    assert found[series("probe_duration_seconds_count")] == 1
    assert found[series("store_requests_total", verb="head", outcome="not_found")] == 2


def test_a_killed_engine_is_a_lost_lease_and_a_detached_one_is_not(serve, port):
    daemon = serve("--http-listen", f"127.0.0.1:{port}")
    daemon.wait_ready()
    with attached(daemon.sockets):
        assert scrape(port)[series("region_bytes")] > 0
    wait_for(lambda: scrape(port)[series("sessions_closed_total")] == 1)
    assert scrape(port)[series("lease_losses_total")] == 0
    code = (
        "import sys, time; from pathlib import Path; from tests.cli.harness import attached\n"
        "with attached(Path(sys.argv[1])):\n    print('on', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(daemon.sockets)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as engine:
        assert engine.stdout
        assert engine.stdout.readline() == b"on\n"
        engine.kill()
    wait_for(lambda: scrape(port)[series("sessions_closed_total")] == 2)
    found = scrape(port)
    assert found[series("lease_losses_total")] == 1
    assert found[series("region_bytes")] == 0


def test_memory_of_a_dead_engine_shows_while_its_transfer_runs(serve, port, s3):
    daemon = serve(
        "--store-url",
        f"s3://{s3.bucket}/p",
        "--http-listen",
        f"127.0.0.1:{port}",
        env=environment(**s3.environment()),
    )
    daemon.wait_ready()
    rule = s3.add(Fault(method="PUT", key="*.bin", delay=30))
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.cli.harness import attached, key\n"
        "with attached(Path(sys.argv[1])) as client:\n"
        "    client.store([key(1)], [0]); print('on', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(daemon.sockets)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as engine:
        wait_for(lambda: s3.counters().in_flight == 1)
        engine.kill()
    wait_for(lambda: scrape(port)[series("dead_engine_bytes")] > 0)
    found = scrape(port)
    assert found[series("dead_engine_bytes")] == found[series("region_bytes")]
    wait_for(lambda: scrape(port)[series("dead_engine_age_seconds")] > 0.2)
    assert found[series("oldest_active_seconds")] > 0
    s3.remove(rule)
    wait_for(lambda: scrape(port)[series("dead_engine_bytes")] == 0)
    assert scrape(port)[series("dead_engine_age_seconds")] == 0


def test_P03_the_number_of_series_is_fixed(serve, port):
    daemon = serve("--http-listen", f"127.0.0.1:{port}")
    daemon.wait_ready()
    with attached(daemon.sockets) as client:
        result_of(client, client.load([key(1)], [0], RequestContext("one")))
        once = scrape(port).keys()
        for number in range(200):
            context = RequestContext(f"request {number}")
            result_of(client, client.load([key(number)], [0], context))
        assert scrape(port).keys() == once


def test_P05_an_inherited_multiprocess_directory_is_ignored(serve, port, tmp_path):
    shared = tmp_path / "multiprocess"
    shared.mkdir()
    (shared / "counter_1.db").write_bytes(b"junk")
    env = environment(PROMETHEUS_MULTIPROC_DIR=str(shared))
    serve("--http-listen", f"127.0.0.1:{port}", env=env).wait_ready()
    assert scrape(port)[series("store_ready")] == 1
    assert list(shared.iterdir()) == [shared / "counter_1.db"]
    assert (shared / "counter_1.db").read_bytes() == b"junk"


def test_a_name_with_an_address_that_is_not_here_listens_on_the_next(monkeypatch):
    """As "localhost" where IPv6 is off."""
    addresses = ["192.0.2.1", "127.0.0.1"]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, 0)) for each in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with http_listener.bind("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    found.pop()
    with pytest.raises(ConfigError, match="can't listen on localhost:0: Cannot assign"):
        http_listener.bind("localhost", 0)


def test_P06_a_taken_port_is_one_clear_line(tmp_path, port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        done = kvferry(
            "serve",
            "--socket-dir",
            str(tmp_path / "run"),
            "--store-url",
            f"file://{tmp_path}/store",
            "--http-listen",
            f"127.0.0.1:{port}",
        )
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert f"can't listen on 127.0.0.1:{port}: Address already in use" in done.err
    assert "KVFERRY_HTTP_LISTEN" in done.err


def test_P06_a_restart_after_a_kill_gets_its_port_at_once(serve, port):
    daemon = serve("--http-listen", f"127.0.0.1:{port}")
    daemon.wait_ready()
    with socket.create_connection(("127.0.0.1", port)) as half_closed:
        half_closed.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        while half_closed.recv(4096):
            pass
        daemon.kill()
        serve("--http-listen", f"127.0.0.1:{port}").wait_ready(starts=2)
        assert get(port, "/healthz") == (200, "ok\n")


def test_an_address_of_another_machine_is_refused(tmp_path):
    done = kvferry("serve", "--socket-dir", str(tmp_path / "run"), "--http-listen", "192.0.2.1:9")
    assert done.status == 2
    assert "can't listen on 192.0.2.1:9" in done.err


def test_O04_liveness_does_not_depend_on_the_store_or_on_load(serve, port, s3):
    daemon = serve(
        "--store-url",
        f"s3://{s3.bucket}/p",
        "--http-listen",
        f"127.0.0.1:{port}",
        env=environment(**s3.environment()),
    )
    daemon.wait_ready()
    rule = s3.add(Fault(method="PUT", key="*.bin", delay=30))
    with attached(daemon.sockets) as client:
        job = client.store([key(n) for n in range(16)], list(range(16)))
        wait_for(lambda: s3.counters().in_flight == 16)
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == (200, "ready\n")
        s3.remove(rule)
        result_of(client, job)
        s3.stop()
        for number in range(100, 108):
            assert result_of(client, client.load([key(number)], [0])).outcomes[0] in {
                Outcome.UNAVAILABLE,
                Outcome.EXPIRED,
            }
    assert get(port, "/healthz") == (200, "ok\n")
    status, text = get(port, "/readyz")
    assert status == 200
    assert "degraded: the breaker for reading is open" in text


def test_a_store_that_never_was_ready_is_named(serve, port):
    env = environment(
        AWS_ENDPOINT_URL_S3="http://127.0.0.1:9", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b"
    )
    daemon = serve("--store-url", "s3://bucket/p", "--http-listen", f"127.0.0.1:{port}", env=env)
    wait_for(lambda: "not usable" in daemon.log)
    status, text = get(port, "/readyz")
    assert status == 200
    assert text.startswith("ready\ndegraded: store not ready: endpoint:")


def test_a_stuck_event_loop_is_neither_healthy_nor_ready(serve):
    daemon = serve()
    daemon.wait_serving()

    def stuck(_seconds: float):
        raise TimeoutError

    pages = DaemonPages(stuck, Recorder().read, daemon.sockets / "kvferry.sock").pages()
    for path in ("/", "/healthz", "/readyz", "/metrics"):
        assert pages[path]().status == 503


def test_rude_visitors_harm_nobody(serve, port):
    daemon = serve("--http-listen", f"127.0.0.1:{port}")
    daemon.wait_ready()
    for request in (
        b"\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"\x00\xff\r\n\r\n",
        b"G" * 40_000,
        b"GET",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as visitor:
            visitor.sendall(request)
            if request.endswith(b"\r\n\r\n"):
                assert b" 400 " in visitor.recv(100)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(80)]
    assert kvferry("health", "--socket-dir", str(daemon.sockets)).status == 0
    assert get(port, "/healthz")[0] == 200  # those who ask nothing make room
    for visitor in idle:
        visitor.close()
    assert get(port, "/healthz")[0] == 200
    assert "Traceback" not in daemon.log
    assert "exception" not in daemon.log


def test_the_listener_is_off_when_the_address_is_empty(serve):
    daemon = serve("--http-listen", "")
    daemon.wait_ready()
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = {line.split()[9] for line in table if line.split()[3] == "0A"}
    own = {str(each.readlink()) for each in Path(f"/proc/{daemon.process.pid}/fd").iterdir()}
    assert not own & {f"socket:[{inode}]" for inode in listening}
    assert daemon.terminate(signal.SIGTERM)[0] == 0
