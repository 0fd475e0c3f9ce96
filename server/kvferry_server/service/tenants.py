"""Whose objects a peer's are: the first path component of their names, from the configuration.

Owns the map from the kernel's word on a peer to a tenant. A client never names its tenant. Imports
core and `peers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvferry_server.core.errors import PermissionDenied

from .peers import Peer

__all__ = ["Tenants"]


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants by uid and by group; without any, all peers share one space of names.

    Args:
        by_uid: wins over `by_gid`.
        by_gid: for the members of a group, supplementary ones included.
    """

    by_uid: Mapping[int, str] = field(default_factory=dict)
    by_gid: Mapping[int, str] = field(default_factory=dict)

    def of(self, peer: Peer | None) -> str:
        """The tenant of a peer; empty if none are configured.

        Args:
            peer: None if nothing is known of who asks.

        Raises:
            PermissionDenied: there are tenants, and the peer is of none or of several.
        """
        if not (self.by_uid or self.by_gid):
            return ""
        if peer is None:
            raise PermissionDenied(
                "this daemon has tenants, and an attach by name does not tell whose it is: use "
                "lease.sock",
                reason="NO_TENANT",
            )
        if peer.uid in self.by_uid:
            return self.by_uid[peer.uid]
        found = {self.by_gid[gid] for gid in peer.gids if gid in self.by_gid}
        if len(found) == 1:
            return found.pop()
        problem = "groups of several tenants" if found else "no tenant"
        raise PermissionDenied(
            f"uid {peer.uid} is of {problem}: name it in tenants.uids, or one of its groups in "
            "tenants.gids, in the daemon's configuration",
            reason="NO_TENANT",
        )

    def space(self, tenant: str, name: str) -> str:
        """The space of a tenant's objects of one name."""
        return f"{tenant}/{name}" if tenant else name
