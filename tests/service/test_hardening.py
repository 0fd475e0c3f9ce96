"""The watchdog's arithmetic on a clock of the test, and the process's settings for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvferry_server.adapters.clock import MonotonicClock
from kvferry_server.adapters.hardening import ABORT_STATUS, LoopWatchdog

from .harness import SYSTEM_PYTHON, as_another_user


class Script:
    """A clock and a sleep that follow a script: seconds of each check, and whether it beat."""

    def __init__(self, steps: list[tuple[float, bool]]) -> None:
        self.now = 0.0
        self.steps = steps
        self.stalls: list[str] = []
        self.watchdog = LoopWatchdog(
            10.0,
            self.stalls.append,
            check_seconds=1.0,
            sleep=self.sleep,
            monotonic=lambda: self.now,
        )

    def sleep(self, _seconds: float) -> bool:
        if not self.steps:
            return True
        seconds, beats = self.steps.pop(0)
        self.now += seconds
        if beats:
            self.watchdog.beat()
        return False

    def run(self) -> list[str]:
        self.watchdog._watch()
        return self.stalls


def test_silence_beyond_the_limit_is_a_stall():
    assert Script([(1.0, False)] * 9).run() == []
    assert Script([(1.0, False)] * 10).run() == ["the event loop was silent for 10 s"]


def test_a_beat_begins_the_count_anew():
    assert Script([*[(1.0, False)] * 9, (1.0, True), *[(1.0, False)] * 9]).run() == []


def test_a_pause_of_the_whole_process_counts_as_little_as_one_check():
    assert Script([(1.0, True), (1000.0, False), *[(1.0, False)] * 7]).run() == []
    assert len(Script([(1.0, True), (1000.0, False), *[(1.0, False)] * 8]).run()) == 1


def test_the_thread_watches_until_it_is_stopped():
    stalls: list[str] = []
    watchdog = LoopWatchdog(0.2, stalls.append, check_seconds=0.02)
    watchdog.start()
    for _ in range(20):
        watchdog.beat()
        time.sleep(0.02)
    assert stalls == []
    watchdog.stop()
    time.sleep(0.4)
    assert stalls == []


def child(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )


def test_no_dumps_and_no_core():
    done = child(
        "import ctypes, resource\n"
        "from kvferry_server.adapters.hardening import forbid_dumps\n"
        "forbid_dumps()\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE))"
    )
    assert done.stdout.strip() == "0 (0, 0)", done.stderr


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one():
    done = child(
        "import resource as r\n"
        "from kvferry_server.adapters.hardening import allow_descriptors\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 1500))\n"
        "allow_descriptors()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    assert done.stdout.strip() == "(1500, 1500)", done.stderr


@as_another_user
@pytest.mark.parametrize(("hardened", "status"), [("no", "0"), ("yes", "1")])
def test_a_process_of_the_same_uid_cannot_look_into_the_daemon(hardened: str, status: str):
    script = (
        "import os, subprocess, sys\n"
        "from kvferry_server.adapters.hardening import forbid_dumps\n"
        "if sys.argv[1] == 'yes': forbid_dumps()\n"
        "print(subprocess.run(['cat', f'/proc/{os.getpid()}/environ'],"
        " capture_output=True).returncode)"
    )
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", script, hardened],
        user=12345,
        group=12345,
        extra_groups=[],
        env={"PYTHONPATH": "server", "PATH": os.environ["PATH"]},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == status


def test_abort_ends_the_process_with_a_line_in_the_log():
    done = child(
        "import atexit, logging\n"
        "from kvferry_server.adapters.hardening import abort\n"
        "logging.basicConfig(format='%(message)s')\n"
        "atexit.register(print, 'clean-up')\n"
        "abort('a transfer is stuck')\n"
    )
    assert done.returncode == ABORT_STATUS
    assert done.stderr.strip() == "ending at once: a transfer is stuck"
    assert done.stdout == ""


def test_abort_ends_the_process_though_its_log_is_stuck():
    done = child(
        "import logging, threading\n"
        "from kvferry_server.adapters.hardening import abort\n"
        "class Stuck(logging.Handler):\n"
        "    def emit(self, record): threading.Event().wait()\n"
        "logging.getLogger().addHandler(Stuck())\n"
        "abort('a transfer is stuck')\n"
    )
    assert done.returncode == ABORT_STATUS


def test_the_clock_is_monotonic():
    clock = MonotonicClock()
    before = clock.monotonic()
    assert before <= clock.monotonic()
    assert abs(before - time.monotonic()) < 5
