"""The outside of the daemon's container: starts it and talks to `pod` over its standard streams.

Imports the standard library.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from . import inspection
from .sandbox import Mounts, daemon_command, path_of

END_SECONDS = 30.0


class PodFailed(RuntimeError):
    """The container ended or a command in it failed; the text is its output."""


class PodClient:
    """A running container with an S3 server in it; use it as a context manager.

    Args:
        shared: the directory that the engine sees too.
        log: file that gets what the container prints.
        store: name of the S3 server.
    """

    def __init__(self, shared: Path, log: Path, store: str = "seaweedfs") -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                daemon_command(Mounts(shared), sys.executable, "-m", "tests.e2e.pod", store),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={"PATH": path_of(Path(sys.executable))},
                text=True,
                start_new_session=True,
            )

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have a command of `pod.Pod` done. Raises PodFailed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise PodFailed("the container has no streams")
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"command": command} | arguments) + "\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            raise PodFailed(f"the daemon's container ended:\n{self._log.read_text()[-4000:]}")
        reply = json.loads(line)
        if "error" in reply:
            raise PodFailed(f"{command}: {reply['error']}")
        return reply["answer"]

    def daemon_pid(self) -> int:
        """The daemon's process id on this machine."""
        for pid in inspection.process_tree(self._process.pid):
            words = inspection.arguments(pid)
            if "serve" in words and any(each.endswith("kvferry") for each in words):
                return pid
        raise PodFailed("no daemon runs in its container")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
