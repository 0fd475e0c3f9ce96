"""`python -m tests.soak.run --minutes 30`: the soak. Writes docs/evidence/soak.{json,md,svg}.

In the first quarter everything is at risk, daemon and engines too. From then on the same daemon
and the same engines have to last, so that growth shows; network, server and objects go on failing.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.faults.rig import wait_for

from .report import DOCUMENT, PLOT, RECORD, document, judge, plot
from .stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_SECONDS = 5.0
PAUSE_SECONDS = (4.0, 10.0)
WARM_SHARE = 0.25


class Faults:
    """What goes wrong, by name."""

    def __init__(self, stage: Stage, wait: Callable[[float], None], seed: int) -> None:
        self.stage = stage
        self._wait = wait
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()

    def one(self, *, lives_at_risk: bool) -> None:
        """A random fault, to its end."""
        always = {
            "network slow": self._slow,
            "network cut": self._cut,
            "connections reset": self._reset,
            "network silent": self._silent,
            "server frozen": self._server_frozen,
            "server killed": self._server_killed,
            "daemon frozen": self._daemon_frozen,
            "objects deleted": self._deleted,
            "objects damaged": self._damaged,
        }
        lives = {
            "daemon killed": self._daemon_killed,
            "daemon restarted": self._daemon_restarted,
            "engine killed": self._engine_killed,
        }
        choices = always | (lives if lives_at_risk else {})
        name = self._random.choice(sorted(choices))
        choices[name]()
        self.done[name] += 1

    def _slow(self) -> None:
        self.stage.proxy.slow(delay_seconds=0.05, bytes_per_second=2_000_000)
        self._wait(5.0)
        self.stage.proxy.fine()

    def _cut(self) -> None:
        self.stage.proxy.cut()
        self._wait(3.0)
        self.stage.proxy.fine()

    def _reset(self) -> None:
        self.stage.proxy.reset_connections()

    def _silent(self) -> None:
        self.stage.proxy.silent()
        self._wait(4.0)
        self.stage.proxy.fine()
        self.stage.proxy.reset_connections()

    def _server_frozen(self) -> None:
        self.stage.backing.server.freeze()
        self._wait(4.0)
        self.stage.backing.server.thaw()

    def _server_killed(self) -> None:
        self.stage.backing.server.kill()
        self._wait(2.0)
        self.stage.backing.server.start()

    def _daemon_frozen(self) -> None:
        self.stage.daemon.running.signal(signal.SIGSTOP)
        self._wait(3.0)
        self.stage.daemon.running.signal(signal.SIGCONT)

    def _daemon_killed(self) -> None:
        self.stage.daemon.kill()
        self._wait(1.0)
        self.stage.daemon.start()

    def _daemon_restarted(self) -> None:
        self.stage.daemon.running.signal(signal.SIGTERM)
        status = self.stage.daemon.ended(60)
        if status:
            raise AssertionError(f"SIGTERM ended the daemon with status {status}")
        self.stage.daemon.start()

    def _engine_killed(self) -> None:
        self.stage.kill_engine(self._random.randrange(3))

    def _deleted(self) -> None:
        names = self.stage.names()
        self.stage.delete(self._random.sample(names, min(len(names), 150)))

    def _damaged(self) -> None:
        for name in self._random.sample(names := self.stage.names(), min(len(names), 10)):
            self.stage.overwrite(name)


def soak(stage: Stage, minutes: float, seed: int) -> dict[str, Any]:
    """Run, end, and look at everything."""
    began = time.monotonic()
    samples: list[dict[str, Any]] = []
    next_sample = began

    def wait(seconds: float) -> None:
        nonlocal next_sample
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if now >= next_sample and stage.daemon.state not in {"T", ""}:
                next_sample = now + SAMPLE_SECONDS
                samples.append({"seconds": round(now - began, 1)} | stage.sample())
            time.sleep(0.1)

    wait_for(lambda: all(each.latest for each in stage.engines), "three engines' first reports")
    faults = Faults(stage, wait, seed)
    chance = random.Random(seed + 1)
    total = minutes * 60
    while (elapsed := time.monotonic() - began) < total:
        faults.one(lives_at_risk=elapsed < WARM_SHARE * total)
        wait(chance.uniform(*PAUSE_SECONDS))
    wait(10.0)
    samples.append({"seconds": round(time.monotonic() - began, 1)} | stage.sample())
    for engine in stage.engines:
        engine.end()
    stage.quiet()
    objects, wrong_objects = stage.wrong_objects()
    return {
        "minutes": minutes,
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "server": f"{stage.backing.server.name} {stage.backing.server.version()}",
        "warm_share": WARM_SHARE,
        "faults": dict(sorted(faults.done.items())),
        "daemons": len(stage.daemon.pids),
        "counts": stage.counts(),
        "outcomes": stage.outcomes(),
        "objects": objects,
        "wrong_objects": wrong_objects,
        "active_chunks_at_end": stage.sample()["active_chunks"],
        "samples": samples,
    }


def main() -> int:
    """Return 1 if anything was wrong or grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--server", default="seaweedfs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="write nothing into docs")
    args = parser.parse_args()
    logging.getLogger("kvferry_client").setLevel(logging.CRITICAL)
    with Stage(args.server) as stage:
        record = soak(stage, args.minutes, args.seed)
    problems = judge(record)
    record["problems"] = problems
    if not args.dry:
        RECORD.write_text(json.dumps(record) + "\n")
        DOCUMENT.write_text(document(record))
        plot(record, PLOT)
    shown = {name: value for name, value in record.items() if name != "samples"}
    sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
