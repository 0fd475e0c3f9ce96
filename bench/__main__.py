"""`python -m bench`: measure, print one line per target, write docs/performance.md and its plots.

`--quick` measures a part, in some five minutes, and writes only the JSON that `--json` names.
Needs root and bubblewrap for the cell with a real engine, and vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from . import report
from .cells import CELLS, FULL, QUICK, Found


def main() -> int:
    """Run the cells; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--quick", action="store_true", help="a part, in some five minutes")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    unknown = set(options.cells) - set(CELLS)
    if unknown:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-", dir="/dev/shm") as memory:
        tempfile.tempdir = memory  # no disk in what is compared
        for name in options.cells or CELLS:
            print(f"{time.monotonic() - began:6.0f} s  cell {name}", file=sys.stderr, flush=True)
            found |= CELLS[name](QUICK if options.quick else FULL)
        tempfile.tempdir = None
    seconds = time.monotonic() - began
    record = report.record(found, seconds, quick=options.quick)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if not options.quick and not options.cells:
        report.write(record)
    for line in report.lines(record):
        print(line)
    return int(any(row["verdict"] == "MISSED" for row in record["rows"]))


if __name__ == "__main__":
    sys.exit(main())
