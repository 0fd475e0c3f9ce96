"""Child processes of the tests, ended by their own pid and never left behind.

Owns: finding a binary, free ports, a child with a log, and its end. Each child is a session of its
own and gets SIGKILL from the kernel when the thread that started it ends (so start children from
the main thread).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STOP_SECONDS = 10.0
"""How long a child may take to end after SIGTERM."""


class StartFailed(RuntimeError):
    """A child ended or did not answer in time; the text ends with its output."""


def find_binary(name: str) -> str | None:
    """Path of a program of this virtual environment or of PATH; None if there is none."""
    beside_python = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([beside_python, os.environ.get("PATH", "")]))


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def listens(port: int) -> bool:
    """Whether a TCP connection to the loopback port is accepted."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without proxies and AWS settings, plus `extra`.

    Daemons keep their checksums in memory unless told otherwise.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
    }
    return kept | {"KVFERRY_CATALOG_DIR": ""} | dict(extra or {})


class Child:
    """One child process with its output in a file.

    Args:
        command: program and arguments; the program is looked up by `find_binary`.
        log: file that gets its standard output and error.
        environment: the whole environment of the child.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        program = find_binary(command[0])
        if program is None:
            raise StartFailed(f"{command[0]} is not installed")
        self._log = log
        with log.open("ab") as output:
            self._process = _spawn([program, *command[1:]], output, environment)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def status(self) -> int:
        """How it ended, as a negative signal number or its exit status; RuntimeError before."""
        status = self._process.poll()
        if status is None:
            raise RuntimeError(f"process {self.pid} still runs")
        return status

    def output(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-2000:]

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready()`; StartFailed if the child ends before or takes longer."""
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            if ready():
                return
            time.sleep(0.02)
        why = f"not ready after {seconds:g} s" if self.running else "ended at start"
        raise StartFailed(f"{self._process.args!r}: {why}\n{self.output()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after `STOP_SECONDS`. Repeating it changes nothing."""
        if self.running:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to it and to what it started. Repeating it changes nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _spawn(
    command: Sequence[str], output: IO[bytes], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=clean_environment() if environment is None else dict(environment),
        start_new_session=True,
    )


def printed(program: str, *arguments: str) -> str:
    """Standard output of a short command."""
    path = find_binary(program)
    if path is None:
        raise StartFailed(f"{program} is not installed")
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


def run_once(program: str, *arguments: str) -> None:
    """Run a command to its end; StartFailed with its output if it fails."""
    path = find_binary(program)
    if path is None:
        raise StartFailed(f"{program} is not installed")
    done = subprocess.run(
        [path, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean_environment(),
    )
    if done.returncode:
        raise StartFailed(f"{program} {arguments[0]}: {done.stdout}{done.stderr}")
