"""`python -m kvferry_client.cleanup`: removes regions of vLLM engines that are gone.

An engine that was killed leaves its region in /dev/shm, where it takes memory until the machine
or pod ends. Run this beside the engines (before one starts, say), as the user that they run as.

Owns: which files are looked at, and the proof that nobody has one open: the kernel grants a write
lease (fcntl F_SETLEASE) only on a file that no other open descriptor and no mapping refers to, in
whatever container or namespace. A region that is in use is kept, and so is one whose use can't be
found out. Imports the standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import stat
import sys
from collections.abc import Sequence
from enum import Enum, unique
from pathlib import Path

DIRECTORY = Path("/dev/shm")  # noqa: S108 -- where vLLM puts its regions
PATTERN = "vllm_offload_*.mmap"


@unique
class Fate(Enum):
    """What became of a region."""

    REMOVED = "removed"
    LEFT = "nobody uses it; would be removed"
    IN_USE = "in use, kept"
    NOT_OURS = "of another user, kept"
    UNKNOWN = "can't find out whether it is in use, kept"


def clean(directory: Path = DIRECTORY, *, remove: bool = True) -> dict[Path, Fate]:
    """Look at each region in a directory and remove those that nobody has open.

    Args:
        directory: where regions are.
        remove: False to only look.

    Returns:
        What became of each.

    Raises:
        OSError: the directory can't be read.
    """
    return {path: _judge(path, remove=remove) for path in sorted(directory.glob(PATTERN))}


def _judge(path: Path, *, remove: bool) -> Fate:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        return Fate.NOT_OURS
    except OSError:
        return Fate.UNKNOWN
    try:
        fate = _use(descriptor)
        if fate is Fate.LEFT and remove:
            path.unlink(missing_ok=True)  # while the lease makes newcomers wait
            fate = Fate.REMOVED
    finally:
        os.close(descriptor)
    return fate


def _use(descriptor: int) -> Fate:
    """LEFT if nobody but this descriptor refers to the file; the lease is kept with it."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return Fate.UNKNOWN
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return Fate.IN_USE
    except PermissionError:
        return Fate.NOT_OURS
    except OSError:
        return Fate.UNKNOWN
    return Fate.LEFT


def main(argv: Sequence[str] | None = None) -> int:
    """Clean up and say what was done; 0 also if there was nothing to do.

    Returns:
        The exit status: 0, or 1 if the directory can't be read.
    """
    parser = argparse.ArgumentParser(prog="python -m kvferry_client.cleanup", description=__doc__)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="remove nothing")
    args = parser.parse_args(argv)
    try:
        found = clean(args.directory, remove=not args.dry_run)
    except OSError as error:
        sys.stderr.write(f"{args.directory}: {error.strerror}\n")
        return 1
    for path, fate in found.items():
        sys.stdout.write(f"{path}: {fate.value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
