"""Measures the calling thread in each method of a tier, in one state of what the tier talks to.

    python -m tests.vllm.calling_thread kvferry stopped     (vLLM's Python)

Prints a JSON object. Run by `never_blocks`, one process for each state, so that none inherits
another's threads and garbage. With `--trace` it brackets each call with look-ups of made-up files,
so that strace's output shows which system calls the calling thread made in between.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .sides import BEGIN, COLLECTOR, END, Backend, Side

LATE_SECONDS = 2.0
RESTART_SECONDS = 1.0
STEP_SECONDS = 0.003
"""An engine's steps are longer; without any pause the other threads of the process never run."""
MAX_SECONDS = 120.0
LOADED_AGAIN = 500
"""A load asks for what was stored so many steps ago."""


def spawn_late(directory: Path) -> subprocess.Popen[bytes]:
    """The scripted daemon of the client's tests, answering late; a real one can't be told to."""
    methods = ["Store", "Load", "Lookup", "Poll"]
    code = (
        "import threading; from pathlib import Path\n"
        "from tests.client.scripted import ScriptedDaemon\n"
        f"d = ScriptedDaemon(Path({str(directory)!r}))\n"
        f"d.delays.update(dict.fromkeys({methods!r}, {LATE_SECONDS}))\n"
        "d.start(); threading.Event().wait()"
    )
    return subprocess.Popen([sys.executable, "-c", code])


@contextlib.contextmanager
def restarting(backend: Backend) -> Iterator[None]:
    """Kill the daemon and start it again, over and over."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(RESTART_SECONDS):
            backend("end_daemon", number=int(signal.SIGKILL))
            backend("daemon", prefix="kv")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def engine_in(side: str, state: str, chunks: int) -> Iterator[Any]:
    """An engine that was attached, and then its daemon (or store) came into the state."""
    from .conftest import CHUNK_BYTES, Engine

    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvf")))
        backend = Backend(directory)
        stack.callback(backend.close)
        one = Side(side, backend)
        stack.callback(one.close)
        tier = one.tier() if state != "2 s late" else {"type": "kvferry"}
        if state == "2 s late":
            late = spawn_late(directory)
            stack.callback(late.wait)
            stack.callback(late.kill)
            tier["socket_dir"] = str(directory)
        extra = {"cpu_bytes_to_use": chunks * CHUNK_BYTES, "secondary_tiers": [tier]}
        from kvferry_client.vllm_plugin import register

        register()
        engine = Engine([tier], extra_config=extra)
        if side == "kvferry":
            assert engine.tier._client.wait_attached(60)
        if state == "stopped":
            backend("freeze") if side == "obj" else backend(
                "signal_daemon", number=int(signal.SIGSTOP)
            )
        elif state == "dead":
            backend("stop_server") if side == "obj" else backend(
                "end_daemon", number=int(signal.SIGKILL)
            )
        elif state == "restarting":
            stack.enter_context(restarting(backend))
        yield engine
        if state == "stopped" and side == "obj":
            backend("thaw")
        elif state == "stopped":
            backend("signal_daemon", number=int(signal.SIGCONT))
        del engine.rows
        engine.manager.shutdown()


def steps_of(tier: Any, calls: int) -> dict[str, Callable[[int], object]]:
    """What a scheduler does in a step, method by method."""
    import numpy as np
    from vllm.v1.kv_offload.base import ReqContext, make_offload_key

    class Job:
        def __init__(self, number: int, key: Any, slot: int, context: Any) -> None:
            self.job_id, self.keys, self.req_context = number, [key], context
            self.chunk_ids = self.block_ids = np.array([slot], dtype=np.int32)

    keys = [make_offload_key(n.to_bytes(32, "big"), 0) for n in range(calls)]
    contexts = [ReqContext(req_id=f"r{n}") for n in range(max(calls // 100, 1))]
    stores = [Job(n, keys[n], n, contexts[n % len(contexts)]) for n in range(calls)]
    loads = [
        Job(calls + n, keys[(n - LOADED_AGAIN) % calls], calls + n, contexts[n % len(contexts)])
        for n in range(calls)
    ]
    return {
        "on_new_request": lambda n: tier.on_new_request(contexts[n % len(contexts)]),
        "lookup": lambda n: tier.lookup(keys[n], contexts[n // 100 % len(contexts)]),
        "on_schedule_end": lambda _n: tier.on_schedule_end(None),
        "submit_store": lambda n: tier.submit_store(stores[n]),
        "submit_load": lambda n: tier.submit_load(loads[n]),
        "get_finished_jobs": lambda _n: list(tier.get_finished_jobs()),
        "has_pending_work": lambda _n: tier.has_pending_work(),
        "take_events": lambda _n: list(tier.take_events()),
        "get_stats": lambda _n: tier.get_stats(),
        "on_request_finished": lambda n: tier.on_request_finished(contexts[n % len(contexts)]),
    }


def percentile(values: list[float], share: float) -> float:
    """The value that so many do not exceed."""
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)]


class Calls:
    """What was seen of the calls of one method."""

    def __init__(self) -> None:
        self.cpu_us: list[float] = []
        self.waits_us: list[float] = []
        """Of the calls in which the thread slept at all, how long it did not run."""

    def summary(self) -> dict[str, float]:
        """For the document."""
        return {
            "calls": len(self.cpu_us),
            "p50": percentile(self.cpu_us, 0.5),
            "p99.9": percentile(self.cpu_us, 0.999),
            "max": max(self.cpu_us),
            "slept": len(self.waits_us),
            "longest": max(self.waits_us, default=0.0),
        }


def measure(tier: Any, calls: int, mark: Callable[[str], None]) -> dict[str, Calls]:
    """Call each method once a step."""
    steps = steps_of(tier, calls)
    seen = {name: Calls() for name in steps}
    gc.collect()
    gc.freeze()  # As vLLM's EngineCore does once it is up.
    end = time.monotonic() + MAX_SECONDS
    for number in range(calls):
        for name, step in steps.items():
            mark(BEGIN)
            sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            wall, cpu = time.monotonic_ns(), time.thread_time_ns()
            step(number)
            used = time.thread_time_ns() - cpu
            waited = time.monotonic_ns() - wall - used
            seen[name].cpu_us.append(used / 1000)
            if resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw != sleeps:
                seen[name].waits_us.append(waited / 1000)
            mark(END)
        if time.monotonic() > end:
            break
        time.sleep(STEP_SECONDS)
    return seen


@contextlib.contextmanager
def collector_watched() -> Iterator[dict[str, float]]:
    """Passes of the cyclic collector on this thread, and their CPU time."""
    seen = {"passes": 0.0, "ms": 0.0}
    this, began = threading.get_ident(), [0]

    def note(phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() != this:
            return
        if phase == "start":
            began[0] = time.thread_time_ns()
        else:
            seen["passes"] += 1
            seen["ms"] += (time.thread_time_ns() - began[0]) / 1e6

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


def mark_for_strace(name: str) -> None:
    """Leave a line in strace's output."""
    with contextlib.suppress(OSError):
        Path(name).readlink()


def main() -> None:
    """Measure one state."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("kvferry", "obj"))
    parser.add_argument("state")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    with engine_in(options.side, options.state, 2 * options.calls) as engine:
        mark = mark_for_strace if options.trace else lambda _name: None
        with collector_watched() as collector:
            seen = measure(engine.tier, options.calls, mark)
        summaries = {name: each.summary() for name, each in seen.items()}
        summaries[COLLECTOR] = collector
        sys.stdout.write(f"RESULT {json.dumps(summaries)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
