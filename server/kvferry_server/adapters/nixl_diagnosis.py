"""Finds out why a transfer failed: NIXL gives neither a code nor a reason.

Owns: the order of the questions and a short memory of an unreachable store. All methods block and
run on the object store's question threads, never on a driver's. Imports core, `nixl_library` and
`s3_types`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvferry_server.core.types import TransferStatus

from .nixl_library import NixlAgent, QueryFailed
from .s3_types import MADE_UP_NAME, S3Inquiry, S3Settings
from .stored_checksums import ObjectFacts

_UNREACHABLE_SECONDS = 1.0


class Diagnosis:
    """Explains failed transfers and probes of one bucket.

    Args:
        settings: where the bucket is.
        agent: for existence queries; from now on this object's, closed with it.
        inquiry: answers what NIXL can't; from now on this object's, closed with it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: S3Settings,
        agent: NixlAgent,
        inquiry: S3Inquiry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._inquiry = inquiry
        self._clock = clock
        self._asking = threading.Lock()
        self._unreachable_until = float("-inf")

    @property
    def keys_refused(self) -> bool:
        """Whether the store was found to refuse the keys themselves."""
        return self._inquiry.keys_refused

    def check_keys(self) -> bool:
        """Ask the store anew; True unless it refuses the keys themselves."""
        return self._inquiry.check_keys()

    def worth_asking(self) -> bool:
        """Whether single keys of a failed query may have an answer of their own."""
        return self.reachable() and not self.keys_refused

    def reachable(self) -> bool:
        """Whether the store answers requests at all, be it with a refusal.

        For a second after a "no" it is not asked again: many chunks fail together when a store
        goes away.
        """
        with self._asking:
            if self._known_unreachable():
                return False
            if self._inquiry.classify_load(MADE_UP_NAME) is TransferStatus.UNAVAILABLE:
                self._unreachable_until = self._clock() + _UNREACHABLE_SECONDS
                return False
            return True

    def of_load(self, name: str, length: int) -> TransferStatus:
        """Why a read of `length` bytes failed."""
        known = self._known_cause()
        if known is not None:
            return known
        try:
            present = self._agent.present([self._settings.object_key(name)])[0]
        except QueryFailed:
            if not self.reachable():
                return TransferStatus.UNAVAILABLE
            return self._inquiry.classify_load(name)
        if not present:
            return TransferStatus.MISSING
        facts = self._inquiry.facts_of(name)
        if facts is not None and facts.size_bytes < length:
            return TransferStatus.WRONG_SIZE
        return TransferStatus.UNAVAILABLE

    def of_store(self, name: str) -> TransferStatus:
        """Why a write failed: DENIED or UNAVAILABLE."""
        known = self._known_cause()
        return self._inquiry.classify_store(name) if known is None else known

    def facts_of(self, name: str) -> ObjectFacts | None:
        """What the store says of an object; None if it is absent or can't be asked."""
        return self._inquiry.facts_of(name)

    def close(self) -> None:
        """Nobody asks any more."""
        self._agent.close()
        self._inquiry.close()

    def _known_cause(self) -> TransferStatus | None:
        """What makes every transfer fail at present, if that is known without asking."""
        if self._known_unreachable():
            return TransferStatus.UNAVAILABLE
        return TransferStatus.DENIED if self.keys_refused else None

    def _known_unreachable(self) -> bool:
        return self._clock() < self._unreachable_until
