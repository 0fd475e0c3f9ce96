"""One JSON object a line: `{"do": "store", ...}` in, `{"value": ...}` out; ends at end-of-file.

Owns both ends. Standard library only, since workers run in foreign environments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
_CPU_CLOCK_OF_PROCESS = 2


class WorkerFailed(RuntimeError):
    """A worker ended or refused; the text is its error."""


class Worker:
    """A running worker; use it as a context manager.

    Args:
        module: to run.
        arguments: one JSON object, the worker's settings.
        python: of the environment it runs in.
        environment: variables beside the present ones.
    """

    def __init__(
        self,
        module: str,
        arguments: Mapping[str, Any],
        python: str | Path = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [str(python), "-m", module, json.dumps(arguments)],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stdout.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its value.

        Raises:
            WorkerFailed: it ended, or the command failed.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise WorkerFailed(f"{self._name} ended; its error is above")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self._name}: {answer['error']}")
        return answer["value"]


def serve(make: Callable[..., Any]) -> None:
    """In a worker: make the contestant from the settings and let its methods answer.

    What the contestant prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant = make(**json.loads(sys.argv[1]))
    try:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = {"value": getattr(contestant, command.pop("do"))(**command)}
            except Exception as error:  # noqa: BLE001 - the parent raises it
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        contestant.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far (see clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)
