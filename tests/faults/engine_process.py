"""An engine in a process of its own, to be killed and frozen: `EngineProcess` and its other side.

Usage of the other side: `python -m tests.faults.engine_process SOCKETS SPACE DESCRIPTOR`; one JSON
command a line on standard input, one JSON answer a line on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .content import Region, Tally
from .rig import Engine

if TYPE_CHECKING:
    from .rig import Scenario

REPOSITORY = Path(__file__).parents[2]


class EngineProcess:
    """A child with a client and a region that this process can see too."""

    def __init__(self, scenario: Scenario) -> None:
        self.region = Region()
        self.space = scenario.new_space()
        arguments = [str(scenario.daemon.sockets), str(self.space), str(self.region.fd)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.engine_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self.region.fd],
            cwd=REPOSITORY,
        )
        scenario.exit.callback(self.kill)
        self._scenario = scenario

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def call(self, do: str, **arguments: Any) -> Any:
        """Have a command carried out and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the engine's process ended with {self._process.wait()}")
        return json.loads(line)

    def store(self, count: int) -> list[bytes]:
        """Submit a store."""
        return [bytes.fromhex(key) for key in self.call("store", count=count)]

    def load(self, keys: list[bytes]) -> None:
        """Submit a load."""
        self.call("load", keys=[key.hex() for key in keys])

    def settle(self) -> list[str]:
        """Wait until all is reported; the outcomes' names."""
        return list(self.call("settle"))

    def freeze(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def frozen(self) -> bool:
        """Whether the kernel has stopped it."""
        text = Path(f"/proc/{self.pid}/stat").read_text()
        return text.rsplit(")", 1)[1].split()[0] == "T"

    def kill(self) -> int:
        """SIGKILL; the status that it ended with. May be repeated."""
        self._process.kill()
        status = self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return status

    def finish(self) -> None:
        """End it well and count what it saw."""
        seen = self.call("finish")
        outcomes = Counter(seen.pop("outcomes"))
        self._scenario.other_tallies.append(Tally(**seen, outcomes=outcomes))
        self.kill()


def main(sockets: str, space: str, descriptor: str) -> None:
    """Carry out commands until the end of the input."""
    engine = Engine(Path(sockets), int(space), Region(descriptor=int(descriptor)))
    engine.attach()
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        match command["do"]:
            case "store":
                answer = [key.hex() for key in engine.store(command["count"])]
            case "load":
                engine.load([bytes.fromhex(key) for key in command["keys"]])
            case "settle":
                answer = [outcome.name for outcome in engine.settle()]
            case "finish":
                engine.settle()
                engine.ledger.check_all()
                answer = vars(engine.ledger.tally)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
