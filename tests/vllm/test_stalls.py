"""How long `drain_jobs` and `shutdown` hold the engine up, whatever the daemon does: a real one.

    python -m pytest -s -m vllm tests/vllm/test_stalls.py     (vLLM's Python; prints the times)

The S3 server is frozen first, so that there are transfers under way and stores in the queue.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.v1.kv_offload.base import make_offload_key

from kvferry_client.types import ClientState
from kvferry_client.vllm_tier import SHUTDOWN_SECONDS

from .conftest import Engine
from .sides import HAS_SERVER, Backend, Side

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not HAS_SERVER, reason="no environment with kvferry's daemon"),
]
HANG_SECONDS = 4.0
TRANSFER_SECONDS = 3.0
GUARD_SECONDS = 60.0
OPTIONS = f"[timeouts]\ntransfer_seconds = {TRANSFER_SECONDS:.0f}\n"
JOBS = 40


class Rig:
    """A tier in use: jobs are open, the store answers nothing."""

    def __init__(self, backend: Backend, side: Side) -> None:
        self.backend = backend
        self.side = side
        self.engine: Engine = side.engine()
        self.tier = self.engine.tier

    def open_jobs(self) -> None:
        """Begin stores whose transfers can't end."""
        self.backend("freeze")
        context = self.engine.request("r")
        for number in range(JOBS):
            self.engine.store([make_offload_key(number.to_bytes(32, "big"), 0)], context, number)
        self.engine.step_until(lambda: self._sent() == JOBS)

    def _sent(self) -> int:
        shared = self.tier._client._shared
        with shared.lock:
            return shared.session.jobs.sent_parts if shared.session else 0

    def ended_within(self, limit: float) -> bool:
        """Wait for the session's end; True if it came."""
        shared = self.tier._client._shared
        with shared.lock:
            return bool(shared.changed.wait_for(lambda: shared.session is None, limit))

    def stop(self) -> None:
        """SIGSTOP, and SIGCONT a while later."""
        self.backend("signal_daemon", number=int(signal.SIGSTOP))

    def kill(self) -> None:
        """SIGKILL."""
        self.backend("end_daemon", number=int(signal.SIGKILL))

    def restart(self) -> None:
        """SIGKILL, then a new daemon, which is attached."""
        self.backend("thaw")
        self.kill()
        self.backend("daemon", prefix="kv", options=OPTIONS)
        client = self.tier._client
        self.engine.step_until(lambda: client.counters["sessions_attached"] == 2, GUARD_SECONDS)


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    backend = Backend(Path(tmp_path_factory.mktemp("s")))
    side = Side("kvferry", backend)
    side._sockets = backend("daemon", prefix="kv", options=OPTIONS)
    made = Rig(backend, side)
    yield made
    backend("thaw")
    side.close()
    backend.close()


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def say(method: str, state: str, took: float) -> None:
    sys.stdout.write(f"\nstall of {method}, {state}: {took:.2f} s\n")


def drained(rig: Rig, state: str) -> float:
    """Drain; every job must have its one result then, as vLLM asserts."""
    took = seconds(rig.tier.drain_jobs)
    say("drain_jobs", state, took)
    results = list(rig.tier.get_finished_jobs())
    numbers = [result.job_id for result in results]
    assert sorted(numbers) == sorted(rig.engine.manager._jobs), "each job exactly once"
    assert not rig.tier._faults
    for result in results:
        rig.engine.manager._pop_job(result.job_id)
    return took


def test_drain_waits_for_transfers_that_are_under_way(rig: Rig) -> None:
    rig.open_jobs()
    threading.Timer(1.0, lambda: rig.backend("thaw")).start()
    assert drained(rig, "the store answers after 1 s") >= 0.5


def test_drain_while_the_store_answers_nothing(rig: Rig) -> None:
    rig.open_jobs()
    assert drained(rig, f"the store answers nothing, transfer_seconds {TRANSFER_SECONDS:.0f}") > 1


def test_drain_waits_for_a_stopped_daemon(rig: Rig) -> None:
    rig.open_jobs()
    rig.backend("thaw")
    rig.stop()
    going_on = threading.Timer(
        HANG_SECONDS, lambda: rig.backend("signal_daemon", number=int(signal.SIGCONT))
    )
    going_on.start()
    took = drained(rig, f"the daemon is stopped for {HANG_SECONDS:.0f} s")
    assert took >= HANG_SECONDS - 0.5, "its slots were given back while it could still write"


def test_drain_of_a_dead_daemons_jobs(rig: Rig) -> None:
    rig.open_jobs()
    rig.kill()
    drained(rig, "the daemon was killed")


def test_drain_after_a_restart(rig: Rig) -> None:
    rig.open_jobs()
    rig.restart()
    drained(rig, "the daemon was restarted")


def test_drain_without_jobs_or_daemon(rig: Rig) -> None:
    drained(rig, "no job is open")
    rig.kill()
    rig.engine.step_until(lambda: rig.tier._client.state is not ClientState.ATTACHED)
    drained(rig, "there is no daemon")


@pytest.mark.parametrize("state", ["running", "stopped", "dead", "restarted", "store frozen"])
def test_shutdown_is_short_and_raises_nothing(rig: Rig, state: str) -> None:
    rig.open_jobs()
    if state != "store frozen":
        rig.backend("thaw")
    changes = {"stopped": rig.stop, "dead": rig.kill, "restarted": rig.restart}
    changes.get(state, lambda: None)()
    took = seconds(rig.tier.shutdown)
    say("shutdown", f"the daemon is {state}" if state != "store frozen" else state, took)
    again = seconds(rig.tier.shutdown)
    say("a second shutdown", state, again)
    if state == "stopped":
        assert took >= SHUTDOWN_SECONDS - 0.1, "it did not wait for the region"
        rig.backend("signal_daemon", number=int(signal.SIGCONT))
    rig.backend("thaw")
    assert not rig.tier._faults
    assert rig.ended_within(GUARD_SECONDS), "the daemon was not told that the session is over"
