"""The daemon's bounds on one session, and what fits into one request. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvferry_client.types import RequestContext

MESSAGE_OVERHEAD_BYTES: Final = 1024
"""The session reference and the frames around jobs, generously."""
ITEM_OVERHEAD_BYTES: Final = 8
"""Tag and length of one key, plus its slot number."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Mirror of the wire's `Limits`; sizes in bytes, times in seconds."""

    max_keys_per_request: int = 10_000
    max_jobs_per_request: int = 1_000
    max_bytes_per_request: int = 1 << 40
    max_key_bytes: int = 256
    max_open_jobs: int = 10_000
    max_wait_seconds: float = 10.0
    max_message_bytes: int = 4 << 20

    def max_chunks_per_job(self, slot_bytes: int) -> int:
        """Most chunks of `slot_bytes` that one job may have; 0 if not even one fits."""
        by_message = (self.max_message_bytes - 2 * MESSAGE_OVERHEAD_BYTES) // (
            self.max_key_bytes + ITEM_OVERHEAD_BYTES
        )
        return min(self.max_keys_per_request, self.max_bytes_per_request // slot_bytes, by_message)


def context_bytes(context: RequestContext) -> int:
    """Return an upper bound of the context's size on the wire, in bytes."""
    params = sum(4 * (len(key) + len(value)) + 16 for key, value in context.transfer_params)
    return 4 * len(context.request_id) + params + 32


def keys_bytes(keys: Sequence[bytes]) -> int:
    """Return an upper bound of the size of keys and their slots on the wire, in bytes."""
    return sum(map(len, keys)) + ITEM_OVERHEAD_BYTES * len(keys)
