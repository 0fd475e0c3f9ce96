"""`kvferry demo` from end to end, and what it leaves behind: nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.harness import COMMAND, environment, kvferry, wait_for, works
from tests.support.fault_server import Fault


def processes_with(text: str) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if text.encode() in Path(entry.path, "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def shared_memory() -> set[str]:
    """Names of demos' regions; each exists for a moment only."""
    return {each.name for each in Path("/dev/shm").glob("kvferry-demo-*")}


@pytest.fixture
def clean():
    """An environment for a demo, all of which must be gone at the end; its paths are short."""
    with tempfile.TemporaryDirectory(prefix="kvferry-t-") as temporary:
        yield environment(TMPDIR=temporary, KVFERRY_LOG_LEVEL="nonsense", KVFERRY_CONFIG="/x")
        assert list(Path(temporary).iterdir()) == []
        assert processes_with(temporary) == []
    wait_for(lambda: not shared_memory())


def test_the_demo_verifies_every_byte(clean):
    done = kvferry("demo", env=clean)
    assert (done.status, done.err) == (0, "")
    for words in (
        r"daemon    process \d+, store file:///",
        r"attached  a region of 256 slots of 1 MiB, from process \d+",
        r"store     128 of 256 chunks",
        r"store +256 +256 +\d+\.\d\d +[\d,]+ MB/s",
        r"load +256 +256 +\d+\.\d\d +[\d,]+ MB/s",
        r"lookup +512 +\d+\.\d+ +[\d,]+ lookups/s",
        r"verified +256  of 256 chunks",
    ):
        assert re.search(words, done.out), words
    [daemon] = re.findall(r"daemon    process (\d+)", done.out)
    [client] = re.findall(r"attached .* process (\d+)", done.out)
    assert daemon != client


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("", signal.SIGINT),
        ("daemon ", signal.SIGINT),
        ("attached ", signal.SIGTERM),
        ("64 of 256", signal.SIGINT),
    ],
)
def test_an_interrupted_demo_leaves_nothing(clean, tmp_path, moment, number):
    out = tmp_path / "out"
    with out.open("wb") as stream:
        demo = subprocess.Popen(
            [*COMMAND, "demo"], env=clean, stdout=stream, stderr=stream, start_new_session=True
        )
    temporary = Path(clean["TMPDIR"])
    wait_for(lambda: moment in out.read_text() and any(temporary.iterdir()))
    demo.send_signal(number)
    status = demo.wait(60)
    assert status in ({0, 1} if moment == "64 of 256" else {1})
    assert "Traceback" not in out.read_text()


def test_a_store_of_ones_own_keeps_the_objects_and_the_demo_says_so(clean, tmp_path):
    done = kvferry("demo", "--store-url", f"file://{tmp_path}/mine", env=clean)
    assert done.status == 0
    assert len([*(tmp_path / "mine").glob("demo-*/**/*.bin")]) == 256
    assert "what was stored is below demo-* in the store" in done.out.splitlines()[-1]
    assert "what was stored" not in kvferry("demo", env=clean).out


def test_a_store_that_loses_what_it_was_given_fails_the_demo(clean, s3):
    s3.add(Fault(method="PUT", key="*demo-*", discard=True))
    done = kvferry("demo", "--store-url", f"s3://{s3.bucket}/p", env=clean | s3.environment())
    assert done.status == 1
    assert "demo failed" in done.err
    assert "Traceback" not in done.err


def test_a_store_that_damages_what_it_was_given_fails_the_demo(clean, s3):
    s3.add(Fault(method="PUT", key="*demo-*", mangle=True))
    done = kvferry("demo", "--store-url", f"s3://{s3.bucket}/p", env=clean | s3.environment())
    assert done.status == 1
    assert "a load job ended with CORRUPT" in done.err


def test_a_store_that_can_not_be_used_is_named(clean):
    done = kvferry(
        "demo",
        "--store-url",
        "s3://bucket/p",
        env=clean
        | {
            "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        },
    )
    assert done.status == 1
    assert "the store can't be used: endpoint:" in done.err


def test_M11_too_little_shared_memory_is_named_with_both_numbers(tmp_path):
    program = "import sys; from kvferry_client.demo import main; sys.exit(main(sys.argv[1:]))"
    command = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--size", str(1 << 20)]
    command += ["--tmpfs", "/dev/shm", "--"]
    if not works([*command, "true"]):
        pytest.skip("bwrap can't make a mount namespace here")
    done = subprocess.run(
        [*command, sys.executable, "-c", program, "--socket-dir", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"needs {256 << 20} bytes" in done.stderr
    assert f"{1 << 20} bytes free" in done.stderr
    assert "--shm-size" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_difference_that_the_daemon_does_not_notice_fails_the_demo(serve, s3, tmp_path):
    (tmp_path / "config.toml").write_text(
        f'[store]\nurl = "s3://{s3.bucket}/p"\n[integrity]\nverify = "off"\n'
    )
    daemon = serve("--config", str(tmp_path / "config.toml"), env=environment(**s3.environment()))
    daemon.wait_ready()
    s3.add(Fault(method="PUT", key="*demo-*", mangle=True, times=3))
    done = subprocess.run(
        [sys.executable, "-m", "kvferry_client.demo", "--socket-dir", str(daemon.sockets)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "verified       253  of 256 chunks" in done.stdout
    assert "3 of 256 chunks came back different" in done.stderr


def test_a_temporary_directory_with_a_long_path_is_named(tmp_path):
    temporary = tmp_path / ("d" * 80)
    temporary.mkdir()
    done = kvferry("demo", env=environment(TMPDIR=str(temporary)))
    assert (done.status, done.out) == (2, "")
    assert "set TMPDIR to a shorter directory" in done.err
    assert done.err.count("\n") == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "setting"), [((), "TMPDIR"), (("--store-url", "file:///mnt/store"), "--store-url")]
)
def test_a_disk_without_room_is_named_with_both_numbers(given, setting):
    command = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--size", str(64 << 20)]
    command += ["--tmpfs", "/mnt", "--setenv", "TMPDIR", "/mnt", "--"]
    if not works([*command, "true"]):
        pytest.skip("bwrap can't make a mount namespace here")
    done = subprocess.run(
        [*command, *COMMAND, "demo", *given],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "stores 264 MiB" in done.stderr
    assert "has 64 MiB free" in done.stderr
    assert f"another directory in {setting}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(method="PUT", key="*demo-*", status=500), "a store job ended with"),
        (Fault(method="HEAD", key="*demo-*", status=500), "of 512 lookups got no answer"),
    ],
)
def test_a_store_that_fails_requests_is_blamed_for_it(clean, s3, fault, said):
    s3.add(fault)
    done = kvferry("demo", "--store-url", f"s3://{s3.bucket}/p", env=clean | s3.environment())
    assert done.status == 1
    assert said in done.err
    assert "`kvferry check` tries it" in done.err


@pytest.mark.parametrize("command", [["demo"], ["bench", "--pairs", "2", "--megabytes", "1"]])
def test_modules_of_the_current_directory_are_none_of_its_own(clean, tmp_path, command):
    for name in ("grpc", "secrets", "kvferry_client", "kvferry_server"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    python, _, *module = COMMAND
    done = subprocess.run(
        [python, "-P", "-m", *module, *command],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
