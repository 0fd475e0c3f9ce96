"""`python -m bench`: measure, print one line per target, write docs/performance.md and its plots.

`--quick` measures a part, in some five minutes, and writes only the JSON that `--json` names. With
the names of cells only those are measured, and take their rows' places in the record.
Needs root and bubblewrap for the cell with a real engine, and vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from . import report
from .cells import CELLS, FULL, QUICK, Extent


def main() -> int:
    """Run the cells; 1 if a target is missed or a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--quick", action="store_true", help="a part, in some five minutes")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    unknown = set(options.cells) - set(CELLS)
    if unknown:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    names = options.cells or list(CELLS)
    if not options.cells and not options.quick:
        report.RECORD.unlink(missing_ok=True)
    run = report.record({}, 0.0, quick=options.quick)
    failed = []
    for name in names:
        print(f"{time.monotonic() - began:6.0f} s  cell {name}", file=sys.stderr, flush=True)
        try:
            measured = _measure(name, QUICK if options.quick else FULL, quick=options.quick)
        except Exception:  # noqa: BLE001 - the other cells' figures are worth having
            traceback.print_exc()
            failed.append(name)
            continue
        run = report.merged(run, measured) if options.quick else report.keep(measured)
    if options.json:
        options.json.write_text(json.dumps(run, indent=1) + "\n")
    if not options.quick:
        report.render(run)
    for line in report.lines(run):
        print(line)
    if failed:
        print(f"not measured, see above: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed) or any(row["verdict"] == "MISSED" for row in run["rows"]))


def _measure(name: str, extent: Extent, *, quick: bool) -> dict[str, Any]:
    """Run one cell, with temporary files in memory: no disk in what is compared."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-", dir="/dev/shm") as memory:
        tempfile.tempdir = memory
        try:
            found = CELLS[name](extent)
        finally:
            tempfile.tempdir = None
    return report.record(found, time.monotonic() - began, quick=quick)


if __name__ == "__main__":
    sys.exit(main())
