"""Command lines of the two containers, made with bubblewrap: what each sees, and as whom it runs.

The daemon's container has user, mount, ipc, pid, net and uts namespaces of its own and its own uid.
The engine's has another uid and a file system of its own, and stays in the machine's other
namespaces, as an engine on the host does. They share one directory. Needs root: two foreign uids
can't be had otherwise. Imports the standard library.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DAEMON_UID = 65_532
ENGINE_UID = 65_531
SOCKET_PARENT = Path("/run/kvferry")
"""Where both containers see the shared directory; the daemon makes its own directory below it."""
SOCKET_DIR = SOCKET_PARENT / "sockets"
SYSTEM = ("/usr", "/etc/ssl", "/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/etc/group")
MERGED = ("bin", "sbin", "lib", "lib64")
TO_SWITCH_USER = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")


@dataclass(frozen=True, slots=True)
class Mounts:
    """What a container sees of this machine, beside system files and this checkout, read-only.

    Args:
        shared: the one directory that both containers see.
        readable: more, read-only.
        writable: more, read-write.
    """

    shared: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


def python_trees(python: Path) -> tuple[Path, ...]:
    """The virtual environment of a Python and the installation that it builds upon."""
    environment = python.parent.parent
    return environment, python.resolve().parent.parent


def daemon_command(mounts: Mounts, *command: str) -> list[str]:
    """`command` in the daemon's container.

    Two steps, since an unprivileged user can't bind what it can't reach (a Python below /root):
    root builds the file system, then the daemon's user makes all its namespaces by itself.
    """
    inner = ["bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1"]
    inner += ["--uid", str(DAEMON_UID), "--gid", str(DAEMON_UID)]
    inner += ["--bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--chdir", str(CHECKOUT)]
    outer = ["bwrap", *_file_system(mounts, CHECKOUT, *python_trees(Path(sys.executable)))]
    outer += ["--dev", "/dev", *TO_SWITCH_USER, "--clearenv"]
    variables = {"PATH": path_of(Path(sys.executable)), "PYTHONDONTWRITEBYTECODE": "1"}
    outer += _variables(variables | {"HOME": "/tmp"})
    return [*outer, *_as_user(DAEMON_UID, groups=()), *inner, "--", *command]


def engine_command(
    mounts: Mounts, python: Path, variables: dict[str, str], *command: str
) -> list[str]:
    """`command` in the engine's container, with exactly these environment variables."""
    outer = ["bwrap", *_file_system(mounts, CHECKOUT, *python_trees(python))]
    outer += ["--dev-bind", "/dev", "/dev", "--ro-bind", "/sys", "/sys", *TO_SWITCH_USER]
    outer += ["--clearenv", *_variables(variables), "--chdir", str(CHECKOUT)]
    return [*outer, *_as_user(ENGINE_UID, groups=(DAEMON_UID,)), "--", *command]


def path_of(python: Path) -> str:
    """PATH with a virtual environment first."""
    return os.pathsep.join([str(python.parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def _file_system(mounts: Mounts, *readable: Path) -> list[str]:
    words = ["--die-with-parent"]
    for name in MERGED:
        words += ["--symlink", f"usr/{name}", f"/{name}"]
    words += ["--bind", "/proc", "/proc", "--dir", "/run", "--perms", "1777", "--tmpfs", "/tmp"]
    bound: list[tuple[str, Path, Path]] = [("--bind", mounts.shared, SOCKET_PARENT)]
    bound += [("--ro-bind", Path(each), Path(each)) for each in SYSTEM if Path(each).exists()]
    bound += [("--ro-bind", each, each) for each in (*readable, *mounts.readable)]
    bound += [("--bind", each, each) for each in mounts.writable]
    for kind, source, target in bound:
        for parent in reversed(target.parents[:-1]):
            words += ["--dir", str(parent)]
        words += [kind, str(source), str(target)]
    return words


def _as_user(uid: int, groups: tuple[int, ...]) -> list[str]:
    words = ["setpriv", "--reuid", str(uid), "--regid", str(uid)]
    words += ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return [*words, "--inh-caps=-all", "--no-new-privs", "--pdeathsig", "KILL"]


def _variables(values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in ("--setenv", name, value)]
