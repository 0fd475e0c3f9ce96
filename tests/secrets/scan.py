"""Looks for a text in the memory of a process, as a process of its own.

`python -m tests.secrets.scan PID < text`. Exit 0: found; 1: not there; 3: not allowed to look.
"""

from __future__ import annotations

import sys

from tests.e2e.inspection import pids_that_know


def main() -> int:
    try:
        found = pids_that_know([int(sys.argv[1])], sys.stdin.read())
    except PermissionError:
        return 3
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
