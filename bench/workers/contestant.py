"""What the clients of an S3 server that run against kvferry have in common.

Owns the clock around a move and the names of a round's objects. Standard library only.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar

from .slots import Slots, object_key

IN_FLIGHT = 25
"""Requests at once, of every contestant: as many as one backend of NIXL's OBJ plugin runs."""


class Contestant(ABC):
    """One client of one bucket.

    Args:
        endpoint_url: of the server.
        bucket: exists.
        access_key: may read and write it.
        secret_key: of that key.
        region: any.
    """

    label: ClassVar[str]

    def __init__(
        self, *, endpoint_url: str, bucket: str, access_key: str, secret_key: str, region: str
    ) -> None:
        self.endpoint_url = endpoint_url
        self.bucket = bucket
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = region
        self.slots = Slots(1, 1)

    def prepare(self, chunks: int, chunk_bytes: int) -> None:
        """Fill the slots."""
        self.slots = Slots(chunks, chunk_bytes)

    def store(self, name: str) -> dict[str, float]:
        """Write every slot to an object of a new round; seconds and CPU seconds."""
        return self._timed(name, self.write)

    def load(self, name: str) -> dict[str, float]:
        """Fill every slot from a round's objects and compare; seconds and CPU seconds."""
        self.slots.wipe()
        taken = self._timed(name, self.read)
        self.slots.check()
        return taken

    @abstractmethod
    def write(self, keys: list[str]) -> None:
        """Store slot i under key i, all of them."""

    @abstractmethod
    def read(self, keys: list[str]) -> None:
        """Fill slot i from key i, all of them."""

    def close(self) -> None:  # noqa: B027 - most have nothing
        """End what runs in the background."""

    def _timed(self, name: str, move: object) -> dict[str, float]:
        assert callable(move)
        keys = [object_key(f"{self.label}-{name}", n) for n in range(self.slots.chunks)]
        began, used = time.perf_counter(), time.process_time()
        move(keys)
        return {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - used,
        }
