"""Looks at running processes from outside, through /proc: who, where, and what they know.

Needs root. Imports the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

NAMESPACES = ("user", "mnt", "ipc", "pid", "net")
READ_BYTES = 16 << 20
MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)$")
PROC = Path("/proc")


def process_tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def arguments(pid: int) -> list[str]:
    """The command line."""
    return os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).split("\0")[:-1]


def environment(pid: int) -> dict[str, str]:
    """The environment that the process was started with."""
    words = os.fsdecode((PROC / str(pid) / "environ").read_bytes()).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def namespaces(pid: int) -> dict[str, str]:
    """The identity of each namespace that the process lives in, by kind."""
    return {each: (PROC / str(pid) / "ns" / each).readlink().name for each in NAMESPACES}


def real_uid(pid: int) -> int:
    """The uid as this machine's root sees it."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    raise LookupError(f"process {pid} has no uid")


def pids_that_know(pids: Iterable[int], text: str) -> list[int]:
    """Those whose writable memory holds the text; environment and arguments are part of it."""
    wanted = text.encode()
    return [pid for pid in pids if any(wanted in each for each in _contents(pid, len(wanted) - 1))]


def _contents(pid: int, overlap: int) -> Iterator[bytes]:
    with (PROC / str(pid) / "mem").open("rb", buffering=0) as memory:
        for start, end in _resident_writable(pid):
            for offset in range(start, end, READ_BYTES):
                length = min(READ_BYTES + overlap, end - offset)
                with contextlib.suppress(OSError):
                    yield os.pread(memory.fileno(), length, offset)


def _resident_writable(pid: int) -> Iterator[tuple[int, int]]:
    span = None
    for line in (PROC / str(pid) / "smaps").read_text().splitlines():
        if mapping := MAPPING.match(line):
            start, end, rights, _name = mapping.groups()
            span = (int(start, 16), int(end, 16)) if rights.startswith("rw") else None
        elif span and line.startswith("Rss:") and int(line.split()[1]):
            yield span
