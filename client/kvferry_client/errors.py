"""Everything that this package raises on purpose.

    KVFerryClientError
     +- RegionError               the memoryview cannot be handed to the daemon
     +- DaemonUnreachableError    nobody listens on the lease socket, or it hung up
     +- AttachRefusedError        the daemon answered and refused the region
     +- ProtocolError             the peer sent something that isn't the contract

`Client` raises none of them after its construction: they end up in its log and `last_error`.
"""

from __future__ import annotations


class KVFerryClientError(Exception):
    """Root of this package's errors."""


class RegionError(KVFerryClientError, ValueError):
    """The memoryview has the wrong shape, or no usable file lies behind it."""


class DaemonUnreachableError(KVFerryClientError, ConnectionError):
    """No daemon listens on the socket, or it closed the connection before it answered."""


class AttachRefusedError(KVFerryClientError):
    """The daemon refused the region; `code` is a gRPC status code, `reason` UPPER_SNAKE."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        """Keep the daemon's answer; `message` is for people."""
        super().__init__(f"the daemon refused the region: {reason}: {message}")
        self.code = code
        self.reason = reason


class ProtocolError(KVFerryClientError):
    """The peer's bytes are not what the contract allows."""
