"""The socket directory: its lock, its mode and group, and the sockets in it.

One daemon per directory. Ownership is a flock on a file that is never unlinked, held until the
process exits; the process id in it is for people only.
"""

from __future__ import annotations

import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry_server.core.errors import ConfigError, FailedPrecondition

from .settings import ADMIN_SOCKET, LEASE_SOCKET, LOCK_FILE, OFFLOAD_SOCKET, ServerSettings

__all__ = ["MAX_SOCKET_PATH_BYTES", "SocketDirectory", "check_socket_dir"]

MAX_SOCKET_PATH_BYTES = 107
DIRECTORY_MODE = 0o750
ADMIN_MODE = 0o600
"""Engines share the group of the other sockets, and must not pause the daemon."""
_LOCK_MODE = 0o640
_SOCKETS = (OFFLOAD_SOCKET, LEASE_SOCKET, ADMIN_SOCKET)
_LEASE_BACKLOG = 128


def check_socket_dir(directory: Path) -> None:
    """Refuse a directory whose socket paths would be too long, before anything is made.

    Raises:
        ConfigError: with the limit and the path.
    """
    for name in _SOCKETS:
        path = directory / name
        length = len(os.fsencode(path))
        if length > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"the socket path {path} has {length} bytes; Linux allows "
                f"{MAX_SOCKET_PATH_BYTES}: choose a shorter sockets.directory",
                reason="SOCKET_PATH_TOO_LONG",
                field="sockets.directory",
            )


class SocketDirectory:
    """A directory that this process owns. `gid` is the group that may connect, if one is set.

    Raises:
        ConfigError: path, owner, group or a file in the way, with what to change.
        FailedPrecondition: another daemon has the directory.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.path = settings.socket_dir
        self.gid = _resolve_group(settings.socket_group)
        self._mode = settings.socket_mode
        self._published: dict[Path, tuple[int, int]] = {}
        check_socket_dir(self.path)
        self._prepare_directory()
        self._lock = self._take_lock()
        for name in _SOCKETS:
            self._clear(self.path / name)

    @contextmanager
    def binding(self, name: str) -> Iterator[Path]:
        """Give the path for a bind inside the block, then set the socket's mode and group.

        admin.sock is the daemon's own uid's (and root's) alone.

        Until then the directory's mode keeps others out, whatever the umask.

        Raises:
            ConfigError: the file system refused.
        """
        path = self.path / name
        admin = name == ADMIN_SOCKET
        try:
            yield path
            path.chmod(ADMIN_MODE if admin else self._mode)
            if self.gid is not None and not admin:
                os.chown(path, -1, self.gid)
            status = path.lstat()
        except OSError as error:
            raise self._refusal(f"can't hold {name}: {error.strerror}") from error
        except RuntimeError as error:  # gRPC's
            raise self._refusal(
                f"can't hold {name}: its file system is full or read-only, or takes no sockets"
            ) from error
        self._published[path] = (status.st_dev, status.st_ino)

    def bind_lease(self) -> socket.socket:
        """A listening, non-blocking stream socket at lease.sock."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with self.binding(LEASE_SOCKET) as path:
            listener.bind(os.fspath(path))
        listener.listen(_LEASE_BACKLOG)
        return listener

    def remove_sockets(self) -> None:
        """Unlink the sockets that this process made, and nothing else. May be repeated."""
        while self._published:
            path, identity = self._published.popitem()
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if (status.st_dev, status.st_ino) == identity:
                path.unlink()

    def _prepare_directory(self) -> None:
        try:
            self.path.mkdir(mode=DIRECTORY_MODE, parents=True)
        except FileExistsError:
            self._check_existing()
        except OSError as error:
            raise self._refusal(f"can't be created: {error.strerror}") from error
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self.gid is not None:
                os.fchown(descriptor, -1, self.gid)
            os.fchmod(descriptor, DIRECTORY_MODE)
        except PermissionError as error:
            raise ConfigError(
                f"the daemon can't give {self.path} to group {self.gid}: it must be a member",
                reason="SOCKET_GROUP_DENIED",
                field="sockets.group",
            ) from error
        except OSError as error:
            raise self._refusal(f"can't be prepared: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _check_existing(self) -> None:
        status = self.path.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise self._refusal("is not a directory")
        if status.st_uid != os.geteuid():
            raise self._refusal(
                f"belongs to uid {status.st_uid}, not to the daemon (uid {os.geteuid()}): name a "
                "subdirectory that the daemon can create"
            )
        names = {entry.name for entry in self.path.iterdir()}
        if names and LOCK_FILE not in names:
            raise self._refusal(
                "holds other files and would be closed to others: name a subdirectory of it"
            )

    def _take_lock(self) -> int:
        path = self.path / LOCK_FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, _LOCK_MODE)
        except OSError as error:
            raise self._refusal(f"can't hold {LOCK_FILE}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise FailedPrecondition(
                f"another kvferry daemon (pid {holder}) serves {self.path}: stop it or choose "
                "another sockets.directory",
                reason="SOCKET_DIR_IN_USE",
                field="sockets.directory",
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise self._refusal(f"can't hold {LOCK_FILE}: {error.strerror}") from error
        return descriptor

    def _clear(self, path: Path) -> None:
        """Remove a stale socket; the lock tells that nobody serves it."""
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ConfigError(
                f"{path} is in the way and not a socket: it was kept, move it elsewhere",
                reason="NOT_A_SOCKET",
                field="sockets.directory",
            )
        path.unlink()

    def _refusal(self, problem: str) -> ConfigError:
        return ConfigError(
            f"sockets.directory {self.path} {problem}",
            reason="BAD_SOCKET_DIR",
            field="sockets.directory",
        )


def _resolve_group(group: str) -> int | None:
    if not group:
        return None
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigError(
            f"sockets.group: there is no group {group!r} on this system: make it, or give a number",
            reason="UNKNOWN_GROUP",
            field="sockets.group",
        ) from error
