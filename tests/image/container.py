"""A root file system run like a container, with bubblewrap.

Owns the command line: the image's user, a root that is mounted read-only, no shell in it, user,
mount, pid, ipc, uts and net namespaces of its own, the command as PID 1. Needs root. Imports the
standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SHELLS = ("usr/bin/dash", "usr/bin/bash", "usr/bin/sh", "bin/dash", "bin/bash", "bin/sh")


@dataclass(frozen=True, slots=True)
class Container:
    """How to run commands on a root file system.

    Args:
        root: the file system.
        uid: user and group of its processes.
        groups: more groups of theirs.
        writable: what is mounted read-write, by path in the container.
        readable: the same, read-only.
        host_network: share this machine's net namespace.
    """

    root: Path
    uid: int
    groups: tuple[int, ...] = ()
    writable: Mapping[str, Path] | None = None
    readable: Mapping[str, Path] | None = None
    host_network: bool = False

    def command(self, variables: Mapping[str, str], *words: str) -> list[str]:
        """The command line that runs `words` in it as PID 1."""
        who = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--pdeathsig", "KILL"]
        who += ["--groups", ",".join(map(str, self.groups))] if self.groups else ["--clear-groups"]
        box = ["bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1", "--new-session"]
        box += ["--uid", str(self.uid), "--gid", str(self.uid), "--clearenv", "--chdir", "/"]
        box += ["--share-net"] if self.host_network else []
        box += ["--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"]
        box += ["--tmpfs", "/dev/shm"]
        for option, mounts in (("--bind", self.writable), ("--ro-bind", self.readable)):
            for inside, outside in (mounts or {}).items():
                box += [option, str(outside), inside]
        for shell in self._shells():
            box += ["--ro-bind", "/dev/null", f"/{shell}"]
        for name, text in variables.items():
            box += ["--setenv", name, text]
        return [*who, "--", *box, "--", *words]

    def _shells(self) -> Sequence[str]:
        """Every shell in the root, by its real path."""
        files = (self.root / name for name in SHELLS)
        real = {file.resolve() for file in files if file.is_file() and not file.is_symlink()}
        return sorted(file.relative_to(self.root).as_posix() for file in real)
