"""What must be where: every key has one right content, every region a memory of what it must hold.

Owns regions, contents, and `Ledger`, the checker of one engine: which jobs were submitted, that
each was reported exactly once, and that no byte of a slot changed after its job was reported. It
plays vLLM at its meanest: a reported slot is overwritten at once with other bytes.
"""

from __future__ import annotations

import mmap
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvferry_client import JobKind, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvferry_client import JobResult

CHUNK = 65_536
SLOTS = 64
_GROUP = bytes(4)


def key_of(number: int, space: int = 0) -> bytes:
    """A key as vLLM makes them: a hash and a group index."""
    return (space << 64 | number).to_bytes(32, "big") + _GROUP


def content_of(key: bytes, size: int = CHUNK) -> bytes:
    """The only right bytes of a key."""
    return random.Random(key).randbytes(size)


def damaged(content: bytes) -> bytes:
    """The same with one bit flipped: what a fault leaves of an object."""
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def key_in_name(name: str) -> bytes | None:
    """The key that an object's name ends with; None for other objects."""
    stem = name.rsplit("/", 1)[-1].removesuffix(".bin")
    try:
        block_hash = bytes.fromhex(stem)
    except ValueError:
        return None
    return block_hash + _GROUP if len(block_hash) == 32 else None


class Region:
    """An anonymous shared file, mapped."""

    def __init__(self, slots: int = SLOTS, chunk: int = CHUNK, descriptor: int = -1) -> None:
        self.slots, self.chunk = slots, chunk
        if descriptor < 0:
            descriptor = os.memfd_create("kvferry-faults")
            os.ftruncate(descriptor, slots * chunk)
        self.fd = descriptor
        self.map = mmap.mmap(self.fd, slots * chunk)
        self.view = memoryview(self.map).cast("B", (slots, chunk))

    @property
    def inode(self) -> int:
        """Of the file."""
        return os.fstat(self.fd).st_ino

    def read(self, slot: int) -> bytes:
        """A slot's bytes."""
        return self.map[slot * self.chunk : (slot + 1) * self.chunk]

    def write(self, slot: int, data: bytes) -> None:
        """Fill a slot."""
        self.map[slot * self.chunk : (slot + 1) * self.chunk] = data


@dataclass
class _Job:
    kind: JobKind
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]


@dataclass
class Tally:
    """What an engine saw. `wrong_*` and `reported_*` other than once must stay 0."""

    submitted: int = 0
    reported: int = 0
    reported_twice: int = 0
    reported_unknown: int = 0
    wrong_loads: int = 0
    """Slots that differ from the key's content, although LOADED, or from what was to be stored."""
    damaged_loads: int = 0
    """Those of them that hold what `damaged` makes of it."""
    wrong_slots: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Ledger:
    """The checker of one engine."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.tally = Tally()
        self.readable = True
        """False once the region's file was cut: touching it would end this process."""
        self._open: dict[int, _Job] = {}
        self._closed: set[int] = set()
        self._reserved: dict[int, bytes] = {}
        """Slots of no open job, and what they must hold."""
        self._patterns = random.Random(os.getpid())
        self.note: Callable[[JobKind, bytes, Outcome], None] | None = None
        """Told how each chunk ended."""
        self.free = list(range(region.slots))

    @property
    def open_jobs(self) -> int:
        """Jobs without a result."""
        return len(self._open)

    def take_slots(self, count: int) -> list[int]:
        """Slots of no open job, their rest checked, none of them the last ones returned."""
        taken, self.free = self.free[:count], self.free[count:]
        for slot in taken:
            self._check(slot)
        return taken

    def submitted(
        self, job_id: int, kind: JobKind, keys: Sequence[bytes], slots: Sequence[int]
    ) -> None:
        """Note a job."""
        self.tally.submitted += 1
        self._open[job_id] = _Job(kind, tuple(keys), tuple(slots))

    def reported(self, results: Sequence[JobResult]) -> None:
        """Check results and take the slots back."""
        for result in results:
            job = self._open.pop(result.job_id, None)
            if job is None:
                twice = result.job_id in self._closed
                self.tally.reported_twice += twice
                self.tally.reported_unknown += not twice
                continue
            self._closed.add(result.job_id)
            self.tally.reported += 1
            for key, slot, outcome in zip(job.keys, job.slots, result.outcomes, strict=True):
                self.tally.outcomes[outcome.name] += 1
                if self.note is not None:
                    self.note(job.kind, key, outcome)
                self._take_back(job.kind, key, slot, outcome)

    def check_all(self) -> None:
        """Look at every slot that must be at rest."""
        for slot in self.free:
            self._check(slot)

    def _take_back(self, kind: JobKind, key: bytes, slot: int, outcome: Outcome) -> None:
        self.free.append(slot)
        if not self.readable:
            return
        right = content_of(key, self.region.chunk)
        if outcome is Outcome.LOADED or kind is JobKind.STORE:
            found = self.region.read(slot)
            self.tally.wrong_loads += found != right
            self.tally.damaged_loads += found == damaged(right)
        pattern = self._patterns.randbytes(16) * (self.region.chunk // 16)
        self.region.write(slot, pattern)
        self._reserved[slot] = pattern

    def _check(self, slot: int) -> None:
        expected = self._reserved.get(slot)
        if expected is not None and self.readable and self.region.read(slot) != expected:
            self.tally.wrong_slots += 1
            self._reserved[slot] = self.region.read(slot)
