"""`python -m tests.soak.run --minutes 30`: the soak. Writes docs/evidence/soak.{json,md,svg}.

Faults come in rounds, each kind once a round, in an order that the seed decides. In the first
quarter, and until each such fault came once, daemon and engines are killed too. From then on the
same daemon and engines have to last, so that growth shows; network, server and objects go on
failing.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from datetime import UTC, datetime
from typing import Any

from tests.faults.rig import wait_for

from .faults import Faults, Order
from .report import DOCUMENT, PLOT, RECORD, document, judge, plot
from .stage import SETTINGS, Stage

SAMPLE_SECONDS = 5.0
PAUSE_SECONDS = (4.0, 10.0)
WARM_SHARE = 0.25


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
    order, faults = Order(seed), Faults(stage, wait, seed)
    chance = random.Random(seed)
    total = minutes * 60
    warm_minutes = 0.0
    while (elapsed := time.monotonic() - began) < total:
        lives_at_risk = elapsed < WARM_SHARE * total or not order.all_lives_done
        faults.inject(order.next(lives_at_risk=lives_at_risk))
        wait(chance.uniform(*PAUSE_SECONDS))
        if lives_at_risk:
            warm_minutes = (time.monotonic() - began) / 60
    wait(10.0)
    samples.append({"seconds": round(time.monotonic() - began, 1)} | stage.sample())
    for engine in stage.engines:
        engine.end()
    stage.quiet()
    last = stage.sample()
    objects, wrong_objects = stage.wrong_objects()
    return {
        "minutes": minutes,
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "server": f"{stage.backing.server.name} {stage.backing.server.version()}",
        "seed": seed,
        "warm_minutes": round(warm_minutes, 1),
        "faults": dict(sorted(order.done.items())),
        "network": vars(stage.proxy.counters),
        "corrupt": stage.corrupt(),
        "daemons": len(stage.daemon.pids),
        "counts": stage.counts(),
        "outcomes": stage.outcomes(),
        "objects": objects,
        "wrong_objects": wrong_objects,
        "active_chunks_at_end": last["active_chunks"],
        "nixl_handles_at_end": last["nixl_handles"],
        "max_active_chunks": SETTINGS["limits"]["max_inflight_chunks"],
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
    with Stage(args.server, args.seed) as stage:
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
