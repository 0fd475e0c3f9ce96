"""How long each step of an engine takes: a line a step, written inside the engine's process.

A line holds the monotonic clock at the step's end, the seconds of the whole step, the seconds of
it spent in `Scheduler.schedule`, where the tier's methods are called, and 1 if the model ran. The
first half needs vllm and runs in EngineCore; `read` and what follows it need nothing.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

QUANTILES = (0.5, 0.9, 0.99, 0.999)
"""As the head of `table` has them."""


def record(path: Path) -> None:
    """From now on write this process's steps to a file; call it before the engine is complete."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    scheduled = [0.0]
    lines = path.open("a", buffering=1, encoding="ascii")

    def timed_schedule(method: Any) -> Any:
        @functools.wraps(method)
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                scheduled[0] += time.perf_counter() - began

        return timed

    def timed_step(method: Any) -> Any:
        @functools.wraps(method)
        def timed(*args: Any) -> Any:
            scheduled[0] = 0.0
            began = time.perf_counter()
            outputs, executed = method(*args)
            seconds = time.perf_counter() - began
            if scheduled[0]:
                line = f"{time.monotonic():.6f} {seconds:.6f} {scheduled[0]:.6f} {executed:d}\n"
                lines.write(line)
            return outputs, executed

        return timed

    Scheduler.schedule = timed_schedule(Scheduler.schedule)
    EngineCore.step = timed_step(EngineCore.step)
    EngineCore.step_with_batch_queue = timed_step(EngineCore.step_with_batch_queue)


@dataclass(frozen=True, slots=True)
class Step:
    """One step; times in seconds, `ended` on the machine's monotonic clock."""

    ended: float
    seconds: float
    schedule_seconds: float
    model_ran: bool


def read(path: Path) -> list[Step]:
    """The steps so far; a line that is being written is left out."""
    lines = path.read_text(encoding="ascii").splitlines()
    fields = [line.split() for line in lines]
    return [
        Step(float(ended), float(step), float(schedule), ran == "1")
        for ended, step, schedule, ran in (each for each in fields if len(each) == 4)
    ]


def between(steps: Iterable[Step], began: float, ended: float) -> list[Step]:
    """Those that ended in an interval and ran the model."""
    return [step for step in steps if began <= step.ended <= ended and step.model_ran]


def table(sides: Mapping[str, list[list[Step]]]) -> Iterator[str]:
    """Lines of a Markdown table that compares runs: counts, quantiles and maxima.

    A side has the steps of one interval or more.
    """
    yield "| ms | steps | p50 | p90 | p99 | p99.9 | max |"
    yield "|---|---|---|---|---|---|---|"
    for name, parts in sides.items():
        yield _row(f"whole step, {name}", [step.seconds for steps in parts for step in steps])
    for name, parts in sides.items():
        times = [step.schedule_seconds for steps in parts for step in steps]
        yield _row(f"`schedule`, {name}", times)
    for name, parts in sides.items():
        pairs = [pair for steps in parts for pair in pairwise(steps)]
        gaps = [later.ended - step.ended for step, later in pairs]
        yield _row(f"from step to step, {name}", gaps)


def _row(name: str, seconds: Iterable[float]) -> str:
    ordered = sorted(seconds)
    chosen = [ordered[min(int(part * len(ordered)), len(ordered) - 1)] for part in QUANTILES]
    cells = "".join(f" {1000 * each:.2f} |" for each in (*chosen, ordered[-1]))
    return f"| {name} | {len(ordered)} |{cells}"
