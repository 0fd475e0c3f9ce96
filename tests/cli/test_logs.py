"""What the log looks like."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from kvferry_server.cli import text
from kvferry_server.cli.logs import RateLimit
from kvferry_server.cli.observer import SUMMARY_SECONDS, Observer
from kvferry_server.core.effects import BreakerChanged, JobFinished
from kvferry_server.core.types import BreakerState, JobKind, JobResult, Outcome
from tests.cli.harness import environment, kvferry

PROGRAM = """
import logging, sys
from kvferry_server.cli import logs
logs.set_up(sys.argv[1], sys.argv[2])
log = logging.getLogger("kvferry_server.service.x")
log.debug("a debug line")
log.info("two\\nlines and \\x1b[31mred")
logging.getLogger("botocore").debug("x-amz-security-token: t0ken")
logging.getLogger("botocore").warning("a library's warning")
try:
    raise ValueError("why")
except ValueError:
    log.exception("failed")
"""


def run(level: str, form: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level, form],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


def test_text_lines_hold_no_control_characters():
    lines = run("info", "text").splitlines()
    assert lines[0].endswith("INFO    service.x: two\\nlines and \\x1b[31mred")
    assert lines[0][:4].isdigit()
    assert "a library's warning" in lines[1]
    assert lines[-1] == "ValueError: why"


def test_json_lines_parse():
    entries = [json.loads(line) for line in run("info", "json").splitlines()]
    assert entries[0]["message"] == "two\nlines and \x1b[31mred"
    assert entries[0]["level"] == "info"
    assert entries[0]["logger"] == "service.x"
    assert "ValueError: why" in entries[-1]["exception"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_debug_is_for_kvferry_only(form):
    printed = run("debug", form)
    assert "a debug line" in printed
    assert "t0ken" not in printed
    assert "a debug line" not in run("info", form)


class _Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def _finished(kind: JobKind, *outcomes: Outcome) -> JobFinished:
    return JobFinished("session", "request", JobResult(1, 1, kind, outcomes, 0, 0.0))


def test_J12_failures_are_summed_up(caplog):
    caplog.set_level(logging.WARNING, "kvferry_server")
    clock = _Clock()
    observer = Observer(clock)
    for _ in range(100):
        observer.observe(_finished(JobKind.STORE, Outcome.UNAVAILABLE, Outcome.STORED))
    assert caplog.messages == ["store of chunks failed: 1 UNAVAILABLE"]
    clock.now += SUMMARY_SECONDS - 0.1
    observer.flush()
    observer.observe(_finished(JobKind.LOAD, Outcome.CORRUPT))
    clock.now += 0.1
    observer.flush()
    observer.flush()
    assert caplog.messages[1:] == [
        "load of chunks failed: 1 CORRUPT",
        "store of chunks failed: 99 UNAVAILABLE",
    ]


def test_what_is_no_failure_makes_no_line(caplog):
    caplog.set_level(logging.INFO, "kvferry_server")
    observer = Observer(_Clock())
    observer.observe(_finished(JobKind.STORE, Outcome.STORED, Outcome.SKIPPED_PRESENT))
    observer.observe(_finished(JobKind.LOAD, Outcome.LOADED, Outcome.MISSING, Outcome.CANCELLED))
    assert caplog.messages == []


@pytest.mark.parametrize("kind", list(JobKind))
@pytest.mark.parametrize("state", list(BreakerState))
def test_a_breaker_that_changes_makes_a_line(caplog, kind, state):
    caplog.set_level(logging.INFO, "kvferry_server")
    Observer(_Clock()).observe(BreakerChanged(kind, state))
    [message] = caplog.messages
    assert ("writing to" if kind is JobKind.STORE else "reading from") in message


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 50, "1024 TiB")],
)
def test_sizes(count, words):
    assert text.size(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (200_000, "2 d 7 h")],
)
def test_spans(seconds, words):
    assert text.span(seconds) == words


LOOP = """
import logging, time
from kvferry_server.cli import logs
logs.set_up("info", "text")
logs.WINDOW_SECONDS = 0.3
log = logging.getLogger("kvferry_server.x")
for number in range(100):
    log.warning("slot %d is gone", number)
log.warning("something else")
time.sleep(0.4)
logs.flush()
logs.flush()
log.warning("slot %d is gone", 100)
"""


def test_lines_that_repeat_are_counted_instead_of_written():
    done = subprocess.run(
        [sys.executable, "-c", LOOP],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.partition("x: ")[2] for line in done.stderr.splitlines()]
    assert lines == [
        *(f"slot {number} is gone" for number in range(10)),
        "something else",
        "90 more lines like this were suppressed, the last: slot 99 is gone",
        "slot 100 is gone",
    ]


def test_debug_lines_are_all_written():
    limit = RateLimit(lambda: 0.0)
    record = logging.LogRecord("x", logging.DEBUG, "", 0, "again", (), None)
    assert all(limit.filter(record) for _ in range(100))


def test_what_admission_settings_hold_back_is_no_failure(caplog):
    observer = Observer(FixedClock())
    result = JobResult(1, 1, JobKind.STORE, (Outcome.SHED,) * 3, 0, 0.0)
    observer.observe(JobFinished("s", "r", result, withheld=3))
    assert not caplog.records
    observer.observe(JobFinished("s", "r", result, withheld=1))
    assert "2 SHED" in caplog.text


class FixedClock:
    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("how", ["flag", "variable"])
@pytest.mark.parametrize("wrong", ["nonsense://x", "s3://bucket/../x"])
def test_a_fatal_error_is_json_where_the_log_is(how, wrong, tmp_path):
    flags = ["--log-format", "json"] if how == "flag" else []
    env = environment(KVFERRY_LOG_FORMAT="json") if how == "variable" else environment()
    done = kvferry("serve", "--store-url", wrong, "--socket-dir", str(tmp_path), *flags, env=env)
    assert done.status == 2
    [line] = done.err.splitlines()
    entry = json.loads(line)
    assert entry["level"] == "critical"
    assert "not a usable store URL" in entry["message"]


def test_a_fatal_error_after_the_start_is_json_too(tmp_path):
    (tmp_path / "kvferry.sock").write_text("x")
    done = kvferry(
        "serve",
        "--socket-dir",
        str(tmp_path),
        "--store-url",
        f"file://{tmp_path}/store",
        "--http-listen",
        "",
        "--log-format",
        "json",
    )
    assert done.status == 2
    entries = [json.loads(line) for line in done.err.splitlines()]
    assert entries[-1]["level"] == "critical"
    assert "sockets.directory" in entries[-1]["message"]
