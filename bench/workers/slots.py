"""The memory that the contestants move: chunks of random bytes, and a check that they came back.

Standard library only.
"""

from __future__ import annotations

import mmap
import random


class Slots:
    """Chunks side by side in anonymous memory, or in memory that the caller maps.

    Args:
        chunks: how many.
        chunk_bytes: length of each.
        memory: at least so many bytes; its content is overwritten.
    """

    def __init__(self, chunks: int, chunk_bytes: int, memory: mmap.mmap | None = None) -> None:
        self.chunks = chunks
        self.chunk_bytes = chunk_bytes
        self.memory = memory or mmap.mmap(-1, chunks * chunk_bytes)
        self.flat = memoryview(self.memory)
        self._original = random.Random(chunk_bytes).randbytes(chunks * chunk_bytes)  # noqa: S311
        self.flat[:] = self._original

    def __getitem__(self, number: int) -> memoryview:
        """One slot."""
        return self.flat[number * self.chunk_bytes : (number + 1) * self.chunk_bytes]

    def wipe(self) -> None:
        """Overwrite everything, so that a load that did nothing is seen."""
        self.flat[:] = bytes(len(self.flat))

    def check(self) -> None:
        """Raise ValueError unless every byte is as at the beginning."""
        if self.flat != self._original:
            raise ValueError("a load brought other bytes than were stored")


def object_key(prefix: str, number: int) -> str:
    """Name of a chunk's object, spread as kvferry's are."""
    name = f"{random.Random(f'{prefix}{number}').getrandbits(256):064x}"  # noqa: S311
    return f"{prefix}/{name[:3]}/{name[3:5]}_g0/{name}.bin"
