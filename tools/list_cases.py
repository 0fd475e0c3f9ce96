#!/usr/bin/env python3
"""Fills the last column of docs/cases.md with the tests that are named after each row.

python tools/list_cases.py           # write
python tools/list_cases.py --check   # exit 1 if the committed page is stale
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cases.md"
TEST = re.compile(r"def (test_((?:[A-Z]\d\d_)+)[a-zA-Z0-9_]*)\(")
ROW = re.compile(r"^\| ([A-Z]\d\d) \| (.*) \| (.*) \|$")


def tests() -> dict[str, list[str]]:
    """Links to the tests of each row, a link for each test."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for name, rows in TEST.findall(file.read_text()):
            link = f"[`{name}`](../{file.relative_to(ROOT).as_posix()})"
            for row in rows.strip("_").split("_"):
                if link not in found[row]:
                    found[row].append(link)
    return found


def render(page: str) -> str:
    """The page with the tests of today."""
    named = tests()
    lines = []
    for line in page.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        ident, symptom, _ = row.groups()
        lines.append(f"| {ident} | {symptom} | {'<br>'.join(named[ident])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Return 1 if `--check` finds the page stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    before = PAGE.read_text()
    after = render(before)
    if args.check:
        return before != after
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
