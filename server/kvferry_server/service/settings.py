"""Settings of the daemon's sockets and limits. Owns no behaviour; imports `tenants`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .tenants import Tenants

OFFLOAD_SOCKET = "kvferry.sock"
LEASE_SOCKET = "lease.sock"
ADMIN_SOCKET = "admin.sock"
LOCK_FILE = "kvferry.lock"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the daemon listens, whom it admits and what it bounds. Seconds and bytes."""

    socket_dir: Path
    """Created with mode 0750 if absent; an existing one must belong to the daemon's uid."""
    socket_mode: int = 0o660
    socket_group: str = ""
    """Name or number of the group that may connect; empty keeps the daemon's own group."""
    allowed_uids: frozenset[int] = frozenset()
    """Uids that may attach, besides the daemon's own."""
    allowed_gids: frozenset[int] = frozenset()
    """Groups that may attach, besides `socket_group`."""
    allow_overflow_uid: bool = False
    """Admit peers of other user namespaces, all of which look like uid 65534."""
    tenants: Tenants = field(default_factory=Tenants)
    """Its uids and groups may attach too."""
    naming: str = "kvferry"
    """A value of `core.naming.Naming`."""
    debug_attach_by_name: bool = False
    debug_idle_seconds: float = 600.0
    """A session attached by name ends when no call has named it for so long."""
    handshake_seconds: float = 5.0
    max_pending_handshakes: int = 32
    """Of connections that have not attached yet; one more ends the oldest."""
    max_sessions: int = 256
    max_message_bytes: int = 16 << 20
    max_concurrent_rpcs: int = 512
    """Calls in handlers at once, each for waiting calls, lookups and the rest."""
    min_ping_seconds: float = 5.0
    """Clients may send keepalive pings this often, also without calls."""
    shutdown_seconds: float = 25.0
    """After SIGTERM, for running transfers."""
    result_seconds: float = 1.0
    """After the last transfer, for clients to fetch results."""
    loop_beat_seconds: float = 0.5
    """How often the event loop shows the watchdog that it is alive."""
