"""Who is at the other end of a Unix socket, and whether it may attach."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from kvferry_server.core.errors import PermissionDenied

__all__ = ["OVERFLOW_ID", "Peer", "PeerPolicy", "read_peer"]

OVERFLOW_ID = 65_534
"""How the kernel shows a uid or gid of another user namespace."""

_SO_PEERGROUPS = 59
_UCRED = struct.Struct("iII")
_GID_BYTES = 4
_MOST_GROUPS = 256
"""Python reads at most 1,024 bytes of a socket option."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as the kernel saw it at that time."""

    uid: int
    gids: frozenset[int]


def read_peer(connection: socket.socket) -> Peer:
    """Ask the kernel for the peer's credentials. Of more than 256 groups only the first counts."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _pid, uid, gid = _UCRED.unpack(raw)
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * _GID_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        packed = b""
    groups = struct.unpack(f"{len(packed) // _GID_BYTES}I", packed)
    return Peer(uid, frozenset({gid, *groups}))


class PeerPolicy:
    """Admits the own uid, listed uids and members of listed groups."""

    def __init__(
        self,
        uids: Collection[int],
        gids: Collection[int],
        *,
        allow_overflow: bool,
        own_uid: int | None = None,
    ) -> None:
        self._uids = frozenset({os.geteuid() if own_uid is None else own_uid, *uids})
        self._gids = frozenset(gids)
        self._allow_overflow = allow_overflow

    def check(self, peer: Peer) -> None:
        """Refuse a peer that is not allowed.

        Raises:
            PermissionDenied: with the setting that would admit it.
        """
        if peer.uid == OVERFLOW_ID:
            if self._allow_overflow:
                return
            raise PermissionDenied(
                f"the peer is seen as uid {OVERFLOW_ID}, which every uid of another user "
                "namespace looks like: set sockets.allow_overflow_uid to admit all of them",
                reason="PEER_OVERFLOW_UID",
            )
        if peer.uid in self._uids or peer.gids & (self._gids - {OVERFLOW_ID}):
            return
        raise PermissionDenied(
            f"uid {peer.uid} may not attach: add it to sockets.allowed_uids, or one of its "
            "groups to sockets.allowed_gids, in the daemon's configuration",
            reason="PEER_NOT_ALLOWED",
        )
