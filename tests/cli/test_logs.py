"""What the log looks like."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from kvferry_server.cli import text
from kvferry_server.cli.observer import SUMMARY_SECONDS, Observer
from kvferry_server.core.effects import BreakerChanged, JobFinished
from kvferry_server.core.types import BreakerState, JobKind, JobResult, Outcome
from tests.cli.harness import environment

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
