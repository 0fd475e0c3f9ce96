"""Measures the calling thread in each method of the tier, and writes docs/never-blocks.md.

    python -m tests.vllm.never_blocks > docs/never-blocks.md     (vLLM's Python)

With `--trace` it makes fewer calls and brackets them with look-ups of made-up files, so that
strace's output shows which system calls the calling thread made in between; `--check FILE` reads
that output. The daemon is the scripted one of the client's tests, in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = 10_000
TRACED_CALLS = 300
LATE_SECONDS = 2.0
LIMIT_US = 200.0
STATES = ("running", "stopped", "dead", "restarting", "2 s late")
BEGIN, END = "/kvferry-begin", "/kvferry-end"
HARMLESS = {"futex", "clock_gettime", "brk", "mmap", "munmap", "madvise", "mprotect", "mremap"}
"""Memory, the thread's own clock, and the interpreter's and the client's short locks."""


def spawn(directory: Path, late: bool) -> subprocess.Popen[bytes]:
    code = "import sys, threading; from pathlib import Path\n"
    code += "from tests.client.scripted import ScriptedDaemon\n"
    code += f"d = ScriptedDaemon(Path({str(directory)!r}))\n"
    if late:
        code += (
            f"d.delays.update(dict.fromkeys(['Store', 'Load', 'Lookup', 'Poll'], {LATE_SECONDS}))\n"
        )
    code += "d.start(); threading.Event().wait()"
    return subprocess.Popen([sys.executable, "-c", code])


@contextlib.contextmanager
def daemon_in(state: str, directory: Path, attach: Callable[[], Any]) -> Iterator[Any]:
    """Bring the daemon into a state; yields the engine."""
    children = [spawn(directory, state == "2 s late")]
    engine = attach()
    assert engine.tier._client.wait_attached(60)
    over = threading.Event()

    def restart() -> None:
        while not over.wait(0.5):
            children[-1].kill()
            children[-1].wait()
            children.append(spawn(directory, late=False))

    restarter = threading.Thread(target=restart)
    if state == "stopped":
        children[-1].send_signal(signal.SIGSTOP)
    elif state == "dead":
        children[-1].kill()
        children[-1].wait()
    elif state == "restarting":
        restarter.start()
    try:
        yield engine
    finally:
        over.set()
        if restarter.ident is not None:
            restarter.join()
        children[-1].kill()
        children[-1].wait()


def measure(engine: Any, calls: int, mark: Callable[[str], None]) -> dict[str, list[float]]:
    """CPU microseconds of this thread for each call of each method."""
    from vllm.v1.kv_offload.base import ReqContext, make_offload_key

    tier = engine.tier
    keys = [make_offload_key(n.to_bytes(32, "big"), 0) for n in range(calls)]
    contexts = [ReqContext(req_id=f"r{n}") for n in range(max(calls // 100, 1))]
    jobs = []
    for number in range(2 * calls):
        job = type("Job", (), {})()
        job.job_id, job.keys = number, [keys[number % calls]]
        job.chunk_ids = job.block_ids = [number % len(engine.rows)]
        job.req_context = contexts[number % len(contexts)]
        jobs.append(job)
    steps: dict[str, Callable[[int], object]] = {
        "on_new_request": lambda n: tier.on_new_request(contexts[n % len(contexts)]),
        "lookup": lambda n: tier.lookup(keys[n], contexts[n // 100 % len(contexts)]),
        "on_schedule_end": lambda _n: tier.on_schedule_end(None),
        "submit_store": lambda n: tier.submit_store(jobs[n]),
        "submit_load": lambda n: tier.submit_load(jobs[calls + n]),
        "get_finished_jobs": lambda _n: list(tier.get_finished_jobs()),
        "has_pending_work": lambda _n: tier.has_pending_work(),
        "take_events": lambda _n: list(tier.take_events()),
        "get_stats": lambda _n: tier.get_stats(),
        "on_request_finished": lambda n: tier.on_request_finished(contexts[n % len(contexts)]),
    }
    used: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.freeze()  # As vLLM's EngineCore does once it is up.
    for number in range(calls):
        for name, step in steps.items():
            mark(BEGIN)
            began = time.thread_time_ns()
            step(number)
            used[name].append((time.thread_time_ns() - began) / 1000)
            mark(END)
    return used


def run(calls: int, *, trace: bool) -> dict[str, dict[str, list[float]]]:
    """Measure every state."""
    from .conftest import CHUNK_BYTES, Engine

    def mark(name: str) -> None:
        if trace:
            with contextlib.suppress(OSError):
                Path(name).readlink()

    found = {}
    for state in STATES:
        with tempfile.TemporaryDirectory(prefix="kvf") as name:
            directory = Path(name)
            tier = {"type": "kvferry", "socket_dir": name}
            extra = {"cpu_bytes_to_use": 4096 * CHUNK_BYTES, "secondary_tiers": [tier]}

            def attach(tier: Any = tier, extra: Any = extra) -> Engine:
                from kvferry_client.vllm_plugin import register

                register()
                return Engine([tier], extra_config=extra)

            with daemon_in(state, directory, attach) as engine:
                found[state] = measure(engine, calls, mark)
            del engine.rows
            engine.manager.shutdown()
    return found


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)]


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """The document."""
    lines = [
        "# The engine's thread never waits",
        "",
        "Written by `python -m tests.vllm.never_blocks` with vLLM 0.32. CPU time of the calling",
        f"thread in microseconds, p50 / p99.9 of {CALLS:,} calls of each method, by what the",
        "daemon does. `lookup`, `has_pending_work`, `get_finished_jobs` and `get_stats` take in",
        "whatever arrived since the last call, so their slowest calls grow with that. `drain_jobs`",
        "and `shutdown` may wait, by vLLM's own contract.",
        "",
        f"| method | {' | '.join(found)} |",
        f"|---|{'---|' * len(found)}",
    ]
    for method in next(iter(found.values())):
        cells = [
            f"{percentile(used[method], 0.5):.0f} / {percentile(used[method], 0.999):.0f}"
            for used in found.values()
        ]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def check(trace: Path) -> Counter[str]:
    """Count the system calls of the marked stretches, by name."""
    counts: Counter[str] = Counter()
    inside: dict[str, bool] = {}
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"(?:\[pid +)?(\d+)\]? +(?:<\.\.\. )?(\w+)", line)
        if match is None:
            continue
        thread, call = match[1], match[2]
        if BEGIN in line or END in line:
            inside[thread] = BEGIN in line
        elif inside.get(thread) and call != "readlink":  # The rest of a mark.
            counts[call] += 1
    return counts


def main() -> int:
    """Measure, or read a trace; 1 if a limit is broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    if options.check is not None:
        counts = check(options.check)
        sys.stdout.write(f"System calls, all methods and states: {dict(counts)}\n")
        return bool(set(counts) - HARMLESS)
    found = run(TRACED_CALLS if options.trace else CALLS, trace=options.trace)
    sys.stdout.write(table(found) + "\n")
    slow = [
        f"{method} ({state})"
        for state, used in found.items()
        for method, values in used.items()
        if percentile(values, 0.999) >= LIMIT_US
    ]
    sys.stderr.write("\n".join(slow))
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
