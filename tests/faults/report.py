"""docs/faults.md from verdicts.json."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
VERDICTS = Path(__file__).with_name("verdicts.json")
DOCUMENT = REPOSITORY / "docs" / "faults.md"

HEAD = """\
# Fault matrix

<!-- Made by `make faults` from tests/faults/verdicts.json; change the faults instead. -->

Each row is a named fault that `make faults` injects into a real daemon (`kvferry serve`) between a
real client and a store. The function that injects it must also prove that the fault happened: a
counter of the server or the network, a process state, an exit status. The checker plays vLLM at its
meanest: as soon as a job is reported, its slots are overwritten, and looked at again later; at the
end every object is read past the daemon and compared with the only right content of its key.

* **jobs / once**: jobs submitted, and those reported exactly once.
* **wrong**: slots with wrong bytes (after LOADED, or changed after the job was reported) plus
  objects with wrong bytes; objects that the fault itself damaged are not counted.
* **back**: seconds from the end of the fault to a chunk that was stored and loaded again; after the
  end of a daemon this includes its start.
* `gate` marks those that also run in `make test`.
"""


def document(record: dict[str, Any]) -> str:
    """The page's text."""
    faults = record["faults"]
    sums = {
        name: sum(each[name] for each in faults)
        for name in ("jobs", "reported_once", "wrong_slots", "wrong_objects", "objects_checked")
    }
    passed = sum(each["passed"] for each in faults)
    summary = (
        f"{passed} of {len(faults)} passed; the last whole run took {record['seconds']} s."
        f" {sums['jobs']} jobs submitted, {sums['reported_once']} reported exactly once;"
        f" {sums['wrong_slots']} wrong slots, {sums['wrong_objects']} wrong of"
        f" {sums['objects_checked']} objects."
    )
    lines = [HEAD, summary]
    for kind, group in itertools.groupby(
        sorted(faults, key=lambda each: (_first(faults, each["kind"]), each["ident"])),
        key=lambda each: each["kind"],
    ):
        lines += ["", f"## {kind}", ""]
        lines += ["| id | fault | what must hold | proof | jobs / once | wrong | back | verdict |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [_row(each) for each in group]
    return "\n".join(lines) + "\n"


def _first(faults: list[dict[str, Any]], kind: str) -> str:
    return min(str(each["ident"]) for each in faults if each["kind"] == kind)


def _row(each: dict[str, Any]) -> str:
    cells = [
        each["ident"] + (" `gate`" if each["gate"] else ""),
        f"{each['title']} ({each['store']})",
        each["must_hold"],
        "; ".join(each["proofs"]),
        f"{each['jobs']} / {each['reported_once']}",
        str(each["wrong_slots"] + each["wrong_objects"]),
        f"{each['recovery_seconds']:.1f} s",
        "holds" if each["passed"] else "**fails**",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
