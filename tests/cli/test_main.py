"""What the command line accepts, its exit statuses and its texts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from kvferry_server import __version__
from kvferry_server.cli.main import COMMANDS
from tests.cli.harness import environment, kvferry

SECRET = "s3cr3tMARKER"
KVFERRY = f"{sys.executable} -m kvferry_server.cli"


def test_version():
    for arguments in (["version"], ["--version"]):
        done = kvferry(*arguments)
        assert (done.status, done.out, done.err) == (0, f"kvferry {__version__}\n", "")


def test_help_teaches():
    done = kvferry("--help")
    assert done.status == 0
    for words in ("first steps", "kvferry demo", "kvferry serve --store-url", "exit status: 0"):
        assert words in done.out
    for command in COMMANDS:
        assert command in done.out
        assert kvferry(command, "--help").status == 0


def test_no_command_prints_the_help_and_is_wrong_use():
    done = kvferry()
    assert (done.status, done.out) == (2, "")
    assert "first steps" in done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["srve"], "no such command; did you mean serve?"),
        ([SECRET], "no such command"),
        (["serve", f"--store-ulr={SECRET}"], "did you mean --store-url?"),
        (["serve", "--secret-key", SECRET], "serve has no --secret-key"),
        (["version", SECRET], "version takes fewer arguments"),
        (["check", f"--json={SECRET}"], "argument --json: ignored explicit argument"),
        (["serve", "--store-url"], "expected one argument"),
        (["serve", "--store-url", f"s3://{SECRET}@b"], "not a usable store URL"),
        (["serve", "--log-level", SECRET], "--log-level: log.level: must be one of"),
        (["serve", "--config", "/no/such/file"], "No such file"),
        (["serve", "--store-url", "s3://bucket/../x"], "'..'"),
        (["check", "s3://bucket//x"], "empty parts"),
        (["demo", "--store-url", "ftp://x"], "not a usable store URL"),
        (["status", "--socket-dir", "/" + "d" * 120], "107"),
        (["health", "--socket-dir", "/" + "d" * 120], "107"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments, expected):
    done = kvferry(*arguments)
    assert done.status == 2
    assert done.out == ""
    assert expected in done.err
    assert done.err.count("\n") == 1
    assert SECRET not in done.err


def test_G09_serve_refuses_a_socket_path_over_107_bytes(tmp_path):
    directory = f"{tmp_path}/{'d' * 120}"
    done = kvferry("serve", "--socket-dir", directory)
    assert done.status == 2
    assert "107" in done.err
    assert directory in done.err


@pytest.mark.parametrize("command", ["status", "health", "version"])
def test_probing_commands_load_neither_nixl_nor_boto3(command, tmp_path):
    socket_dir = [] if command == "version" else ["--socket-dir", str(tmp_path)]
    program = (
        "import sys; from kvferry_server.cli.main import main; main(sys.argv[1:]);"
        "print({'boto3', 'botocore', 'nixl_cu12', 'numpy', 'prometheus_client'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, command, *socket_dir],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_check_of_a_good_directory(tmp_path):
    done = kvferry("check", f"file://{tmp_path}/store")
    assert done.status == 0
    assert "ok    round trip" in done.out
    assert done.out.splitlines()[-1].startswith(f"store file://{tmp_path}/store: ready: ")
    done = kvferry("check", "--json", f"file://{tmp_path}/store")
    found = json.loads(done.out)
    assert (done.status, found["ready"], found["problem"]) == (0, True, "")
    assert all(step["passed"] for step in found["steps"])


def test_check_of_a_bad_store(tmp_path):
    (tmp_path / "file").write_text("")
    done = kvferry("check", f"file://{tmp_path}/file/store")
    assert done.status == 15
    assert done.out.startswith("FAIL  directory")
    done = kvferry("check", "--json", f"file://{tmp_path}/file/store")
    found = json.loads(done.out)
    assert (done.status, found["ready"]) == (15, False)
    assert found["problem"]
    assert not found["steps"][-1]["passed"]


def test_a_wrong_url_is_blamed_on_the_argument_that_held_it():
    for command in ("check", "lifecycle"):
        done = kvferry(command, "nonsense://x")
        assert done.status == 2
        assert done.err.startswith("kvferry: STORE_URL: not a usable store URL")


def test_check_takes_the_configured_store(tmp_path):
    done = kvferry("check", env=environment(KVFERRY_STORE_URL=f"file://{tmp_path}/configured"))
    assert f"store file://{tmp_path}/configured: ready" in done.out


def test_check_of_s3(s3):
    done = kvferry("check", f"s3://{s3.bucket}/p", env=environment(**s3.environment()))
    assert done.status == 0, done.out + done.err
    assert "checksum required" in done.out
    assert s3.keys() == []
    done = kvferry("check", "s3://no-such-bucket/p", env=environment(**s3.environment()))
    assert done.status == 15
    assert "no-such-bucket" in done.out.splitlines()[-1]


def test_check_without_a_server_and_without_credentials():
    done = kvferry(
        "check", "s3://bucket/p", env=environment(AWS_ENDPOINT_URL_S3="http://127.0.0.1:9")
    )
    assert done.status == 11
    assert "127.0.0.1 port 9" in done.out
    assert "Traceback" not in done.err


def test_check_refuses_a_wrong_endpoint_as_configuration():
    done = kvferry(
        "check", "s3://bucket/p", env=environment(AWS_ENDPOINT_URL_S3=f"http://k:{SECRET}@host")
    )
    assert done.status == 2
    assert "AWS_ENDPOINT_URL_S3" in done.err
    assert SECRET not in done.out + done.err


def test_a_client_only_environment_says_what_is_missing():
    script = (
        "import sys; sys.modules['grpc_health'] = None; sys.modules['grpc_health.v1'] = None;"
        "from kvferry_server.cli.main import main; sys.exit(main(['health']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2
    assert "install kvferry[server]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["version", "completion bash", "--help"])
def test_a_full_disk_is_one_line(arguments, unbuffered):
    done = shell(f"{KVFERRY} {arguments} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    said = "kvferry: the output can't be written: No space left on device\n"
    swallowed = arguments == "--help" and unbuffered  # by argparse
    assert (done.returncode, done.stderr) == ((0, "") if swallowed else (1, said))


def test_what_the_terminal_has_no_letter_for_is_escaped(tmp_path):
    url = (tmp_path / "ü").as_uri()
    done = kvferry("check", url, env=environment(PYTHONIOENCODING="ascii"))
    assert (done.status, done.err) == (0, "")
    assert "\\xfc" in done.out


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["version", "completion bash", "--help"])
def test_a_closed_pipe_is_silent(arguments, unbuffered):
    done = shell(f"(sleep 0.1; {KVFERRY} {arguments}) | true", PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == ""


def test_the_demo_ends_quietly_when_nobody_reads_on():
    done = shell(f"{KVFERRY} demo | head -n 1")
    assert done.stdout.startswith("daemon ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "closed", [">&-", "2>&-", ">&- 2>&- <&-"], ids=["output", "error", "all three"]
)
def test_a_closed_stream_is_no_problem(closed):
    for arguments, status in (("version", 0), ("status --socket-dir /none", 1), ("srve", 2)):
        done = shell(f"{KVFERRY} {arguments} {closed}")
        assert done.returncode == status
        assert "Traceback" not in done.stderr


def test_nothing_is_opened_where_a_standard_stream_belongs():
    program = (
        "import os, sys; from kvferry_server.cli import streams; streams.open_closed();"
        "names = [os.readlink(f'/proc/self/fd/{each}') for each in range(3)];"
        "sys.exit(names != ['/dev/null'] * 3)"
    )
    assert shell(f'{sys.executable} -c "{program}" <&- >&- 2>&-').returncode == 0


def test_a_socket_directory_of_odd_bytes_is_named_harmlessly():
    done = shell(f"{KVFERRY} status --socket-dir $'/none/\\xff\\x1b[31m'")
    assert done.returncode == 1
    assert r"no daemon listens at /none/\udcff\x1b[31m/admin.sock" in done.stderr


def test_ctrl_c_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"http://127.0.0.1:{mute.getsockname()[1]}"
        env = environment(
            AWS_ENDPOINT_URL_S3=endpoint, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "kvferry_server.cli", "check", "s3://bucket/p"],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        asking, _ = mute.accept()
        with asking:  # it looks at the store now, and waits
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "kvferry: interrupted\n")


def shell(line: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
