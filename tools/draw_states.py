#!/usr/bin/env python3
"""Draws docs/state-diagram.md from the core's tables, as Mermaid text that GitHub renders.

python tools/draw_states.py           # write
python tools/draw_states.py --check   # exit 1 if the committed page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvferry_server.core.states import OUTCOMES, TRANSITIONS, ChunkEvent, ChunkState
from kvferry_server.core.types import JobKind

PAGE = Path(__file__).resolve().parent.parent / "docs" / "state-diagram.md"
HEAD = """\
# The life of a chunk

Drawn by `make states` from the tables in `server/kvferry_server/core/states.py`; a test fails if
this page is older than they are. An event that has no arrow here raises and changes nothing.

A slot is touched in ACTIVE only: canary, checksum, transfer and verification all lie between START
and RETRY or FINISH. A job is reported when all its chunks are DONE.
"""


def diagram() -> list[str]:
    """One arrow per row of the transition table."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {ChunkState.QUEUED.name}"]
    lines += [
        f"    {state.name} --> {after.name}: {event.name}"
        for (state, event), after in TRANSITIONS.items()
    ]
    return [*lines, f"    {ChunkState.DONE.name} --> [*]", "```"]


def events() -> list[str]:
    """What each event means, in the table's own words."""
    doc = {
        ChunkEvent.START: "a transfer slot is free: I/O may touch the chunk's slot from now on",
        ChunkEvent.RETRY: "the attempt failed for a retriable reason and nothing runs any more",
        ChunkEvent.FINISH: "the attempt is terminal and nothing touches the slot any more",
        ChunkEvent.DROP: "the chunk ends without another transfer",
    }
    return [f"* {event.name}: {doc[event]}." for event in ChunkEvent]


def outcomes() -> list[str]:
    """The outcomes that each ending event allows, by kind of job."""
    lines = ["| job | event | outcomes |", "|---|---|---|"]
    for kind in JobKind:
        for event in ChunkEvent:
            allowed = OUTCOMES.get((kind, event))
            if allowed:
                names = ", ".join(outcome.name for outcome in sorted(allowed))
                lines.append(f"| {kind.name} | {event.name} | {names} |")
    return lines


def page() -> str:
    """The whole page."""
    return "\n".join(
        [HEAD, *diagram(), "", *events(), "", "How a chunk may end:", "", *outcomes(), ""]
    )


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="Draw the state diagram.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    if parser.parse_args().check:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        if not fresh:
            print("stale: docs/state-diagram.md; run `make states`", file=sys.stderr)
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
