"""Shows that the engine's thread never waits in the tier; writes docs/never-blocks.md.

    python -m tests.vllm.never_blocks > docs/never-blocks.md     (vLLM's Python)

`make never-blocks` does so. Each state is measured by `calling_thread` in a process of its own,
vLLM's `obj` tier likewise, then once more with fewer calls under strace. Exits with 1 if a limit is
broken.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from .sides import BEGIN, COLLECTOR, END, ROOT, S3_SERVER

TRACED_CALLS = 300
LIMIT_US = 200.0
STATES = ("running", "stopped", "dead", "restarting", "2 s late")
OBJ_STATES = ("running", "stopped")
"""With S3 refusing connections it waits in its own shutdown for minutes."""
END_SECONDS = 30.0
MEMORY = {"brk", "mmap", "munmap", "madvise", "mprotect", "mremap"}
MEASUREMENT = {"clock_gettime", "getrusage"}
INTERPRETER = {"futex wait", "futex wake"}
HARMLESS = MEMORY | MEASUREMENT | INTERPRETER
TEMPLATE = """\
# The engine's thread never waits

Written by `make never-blocks` at commit {commit} with vLLM {vllm}, Python {python}, {cores} cores,
{server} as S3 server. Load average of the machine meanwhile: {low} to {high}.

A real tier object does what a scheduler does: each step it calls each method once, then it pauses
for 3 ms; {steps} steps for each state. `running`, `stopped` (SIGSTOP), `dead` (SIGKILL) and
`restarting` (killed and started once a second) are a real daemon; the one that answers 2 s late is
the scripted daemon of the client's tests. vLLM's own `obj` tier ran the same steps beside it, with
the S3 server in the state that its column says; a state is cut after 2 minutes. No column says
what it does when S3 refuses connections: it did not come to its end then. `drain_jobs` and
`shutdown` may wait, by vLLM's own contract: [the longest stalls](vllm.md#the-longest-stalls).

## CPU time

Microseconds of the calling thread in one call, p50 / p99.9. The goal is a p99.9 below {limit} in
kvferry's columns: {verdict}.

{cpu}

Steps of `obj`: {obj_steps}.

While a method of kvferry's runs, Python's cyclic collector is kept out; a pass that became due runs
right after the call, in the engine's own code. It isn't gone, only not in here. Passes on the
calling thread, inside and outside of the tier's methods, per 1,000 steps: {collector}.

## Waiting

Calls in which the thread slept at all (voluntary context switches), and in brackets how long it did
not run in the longest of them, in ms. kvferry's methods take no lock that they would have to wait
for. What is left is the interpreter's own lock: any other thread of the process may hold it for
5 ms at a time, longer if the machine gives that thread no core.

{waits}

## System calls

What the calling thread called between begin and end of a method, as `strace -f -T` saw it in
{traced} steps of each state, all methods and states together. strace slows every system call down,
and with it whoever holds the interpreter's lock, which is what `futex` is here.

{calls}

{blocking}
"""
LINE = re.compile(r"(?:\[pid +)?(\d+)\]? +(?:<\.\.\. )?(\w+).*?(?:<([\d.]+)>)?$")
Summary = dict[str, dict[str, float]]


def measured(side: str, state: str, *options: str, before: tuple[str, ...] = ()) -> Summary:
    """What `calling_thread` says about a state."""
    command = [*before, sys.executable, "-m", "tests.vllm.calling_thread", side, state, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    found: Summary = {}
    for line in process.stdout or ():
        if line.startswith("RESULT "):
            found = json.loads(line.removeprefix("RESULT "))
            break
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:  # `obj` may wait for its store for a long time.
        process.kill()
        process.communicate()
    if not found:
        raise RuntimeError(f"{side} {state}: no result")
    return found


class Calls:
    """The system calls of the marked stretches: how often, and how long the longest took."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, float] = defaultdict(float)

    def add(self, trace: Path) -> None:
        """Read what strace wrote."""
        inside: dict[str, bool] = {}
        pending: dict[str, str] = {}
        for line in trace.read_text(errors="replace").splitlines():
            match = LINE.match(line)
            if match is None:
                continue
            thread, call, seconds = match.groups()
            if BEGIN in line or END in line:
                inside[thread] = BEGIN in line
            elif inside.get(thread) and call != "readlink":  # The rest of a mark.
                if "resumed>" in line:
                    name = pending.get(thread, call)
                else:
                    name = pending[thread] = _name(call, line)
                    self.counts[name] += 1
                self.longest[name] = max(self.longest[name], float(seconds or 0))

    @property
    def blocking(self) -> list[str]:
        """Those that are neither harmless nor a lock of the interpreter."""
        return sorted(set(self.counts) - HARMLESS)

    def __str__(self) -> str:
        return ", ".join(
            f"`{name}` {count} times (the longest {1000 * self.longest[name]:.1f} ms)"
            for name, count in self.counts.most_common()
        )


def _name(call: str, line: str) -> str:
    if call != "futex":
        return call
    return "futex wake" if "FUTEX_WAKE" in line else "futex wait"


def traced(side: str, states: tuple[str, ...]) -> Calls:
    """The system calls of all states."""
    calls = Calls()
    for state in states:
        with tempfile.TemporaryDirectory() as name:
            trace = Path(name) / "trace"
            before = ("strace", "-f", "-T", "-o", str(trace))
            measured(side, state, "--calls", str(TRACED_CALLS), "--trace", before=before)
            calls.add(trace)
    return calls


def cpu_cell(method: dict[str, float]) -> str:
    """p50 and p99.9."""
    return f"{method['p50']:.0f} / {method['p99.9']:.0f}"


def wait_cell(method: dict[str, float]) -> str:
    """How many calls slept, and the longest sleep."""
    return f"{method['slept']:.0f} ({method['longest'] / 1000:.1f})" if method["slept"] else "0"


def rows(found: dict[str, Summary], of: Callable[[dict[str, float]], str]) -> str:
    """A table with a row for each method."""
    lines = [f"| method | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    names = next(iter(found.values()))
    lines += [
        f"| `{name}` | {' | '.join(of(each[name]) for each in found.values())} |" for name in names
    ]
    return "\n".join(lines)


def document(
    ours: dict[str, Summary], theirs: dict[str, Summary], traces: dict[str, Calls], loads: list[str]
) -> str:
    """The whole page."""
    from vllm import __version__

    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    everything = {**ours, **{f"obj, S3 {state}": found for state, found in theirs.items()}}
    collector = {state: found.pop(COLLECTOR) for state, found in everything.items()}
    steps = {state: next(iter(found.values()))["calls"] for state, found in everything.items()}
    return TEMPLATE.format(
        commit=commit.stdout.strip(),
        vllm=__version__,
        python=platform.python_version(),
        cores=os.cpu_count(),
        server=S3_SERVER,
        low=min(loads, key=float),
        high=max(loads, key=float),
        steps=f"{steps[STATES[0]]:,.0f}",
        limit=f"{LIMIT_US:.0f}",
        verdict=f"not reached by {', '.join(over(ours))}" if over(ours) else "reached",
        cpu=rows(everything, cpu_cell),
        obj_steps=", ".join(f"{n:,.0f} ({s})" for s, n in steps.items() if s.startswith("obj")),
        collector=", ".join(
            f"{1000 * each['passes'] / steps[state]:.0f} that took "
            f"{1000 * each['ms'] / steps[state]:.0f} ms ({state})"
            for state, each in collector.items()
        ),
        waits=rows(everything, wait_cell),
        traced=TRACED_CALLS,
        calls="\n".join(f"* {side}: {each}" for side, each in traces.items()),
        blocking=(
            f"kvferry also called {', '.join(traces['kvferry'].blocking)}."
            if traces["kvferry"].blocking
            else "No read, write, connect, poll or sleep is among kvferry's."
        ),
    )


def over(found: dict[str, Summary]) -> list[str]:
    """Methods that are not within the limit."""
    return [
        f"`{method}` ({state}: {each['p99.9']:.0f})"
        for state, methods in found.items()
        for method, each in methods.items()
        if method != COLLECTOR and each["p99.9"] >= LIMIT_US
    ]


def main() -> int:
    """Measure everything and print the document; 1 if a limit is broken."""
    loads = []

    def state_of(side: str, state: str) -> Summary:
        began = time.monotonic()
        found = measured(side, state)
        loads.append(Path("/proc/loadavg").read_text().split()[0])
        sys.stderr.write(f"{side} {state}: {time.monotonic() - began:.0f} s, load {loads[-1]}\n")
        return found

    ours = {state: state_of("kvferry", state) for state in STATES}
    theirs = {state: state_of("obj", state) for state in OBJ_STATES}
    traces = {"kvferry": traced("kvferry", STATES), "obj": traced("obj", OBJ_STATES[:1])}
    sys.stdout.write(document(ours, theirs, traces, loads))
    broken = over(ours) + traces["kvferry"].blocking
    sys.stderr.write("".join(f"over the limit: {each}\n" for each in broken))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
