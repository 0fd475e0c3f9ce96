"""End-to-end integrity of chunks: what every object store does around its transfers.

Owns: the canary, and the two procedures (store, load) that all object stores share; a store
contributes a `ChunkMover`, `integrity_catalog` what is known of objects. Imports core,
`integrity_catalog`, `nixl_steps` and `stored_checksums`.

Rules:

* A store's CRC32C is taken from the slot before the transfer. The slot is fenced until the chunk
  is done, so these are the bytes that go out.
* A load is OK only if its length is right and, where the checksum is known, the checksum too.
* Short objects: NIXL reports them as done and leaves the slot's old tail. Before each attempt the
  slot's last byte is set to a random canary. If it still holds the canary afterwards, the chunk is
  loaded once more with another canary: a byte of a whole object can't equal both.
* Over-long objects: NIXL cuts them silently. Where the length is not known, it is asked for once.
  That answer also has the checksum that the store itself keeps, where it keeps one: the load is
  compared with it, and from then on the daemon knows its own.
* A checksum that an object failed stays until the object is stored anew: otherwise the next load of
  the same damaged bytes would pass for want of knowledge. A store that fails half-way changes
  nothing of what is known. The entry of a missing object is dropped, but never the entry of a store
  that finished during the load.

Threads: the procedures run on driver threads.
"""

from __future__ import annotations

import secrets
from typing import Literal, Protocol

from awscrt.checksums import crc32c

from kvferry_server.core.telemetry import SILENCE, Answer, Checked, Telemetry, Verb
from kvferry_server.core.types import TransferStatus

from .integrity_catalog import ChecksumCatalog, Expectation
from .nixl_steps import Procedure, Steps
from .stored_checksums import ObjectFacts

__all__ = ["ChecksumCatalog", "ChunkMover", "Expectation", "Integrity", "Verify"]

Verify = Literal["require", "when-known", "off"]

_CHECKS = {
    TransferStatus.CORRUPT: Checked.CORRUPT,
    TransferStatus.WRONG_SIZE: Checked.WRONG_SIZE,
}
_ANSWERS = {
    TransferStatus.OK: Answer.OK,
    TransferStatus.WRONG_SIZE: Answer.OK,
    TransferStatus.MISSING: Answer.NOT_FOUND,
    TransferStatus.DENIED: Answer.DENIED,
}


class ChunkMover(Protocol):
    """What an object store does for one chunk; all methods are steps of a procedure."""

    exact_size: bool
    """Whether `read` ends as WRONG_SIZE when the object is not exactly as long as the slot."""

    def write(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Write the object."""

    def read(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Fill the slot from the object; OK means that the transfer succeeded, nothing more."""

    def facts(self, name: str) -> Steps[ObjectFacts | None]:
        """What the store says of the object; None if it can't be found out."""


class Integrity:
    """The store and load procedures.

    Args:
        catalog: what is known of objects; may be shared by several stores of the same objects.
        verify: `require`: a load whose checksum neither the catalog nor the store knows ends
            CORRUPT, before any byte moves.
            `when-known`: it is loaded, and its length checked. `off`: no checksum is taken or
            compared; lengths are still checked, since the rest of a short object's slot would
            be another chunk's bytes, and the catalog remembers lengths only.
        telemetry: gets each request of a transfer and what each verification came to.
    """

    def __init__(
        self,
        catalog: ChecksumCatalog,
        verify: Verify = "when-known",
        telemetry: Telemetry = SILENCE,
    ) -> None:
        self._catalog = catalog
        self._verify = verify
        self._telemetry = telemetry

    def store(self, mover: ChunkMover, name: str, buffer: memoryview) -> Procedure:
        """Write a slot to an object and remember its checksum."""
        crc = None if self._verify == "off" else crc32c(buffer)
        if crc is None:
            self._catalog.drop(name)
        status = yield from mover.write(name, buffer)
        self._telemetry.requests_ended(Verb.PUT, _answer(status))
        if status is TransferStatus.OK:
            self._catalog.put(name, Expectation(buffer.nbytes, crc))
        return status

    def load(self, mover: ChunkMover, name: str, buffer: memoryview) -> Procedure:
        """Fill a slot from an object and verify it."""
        expected = yield from self._catalog.find(name)
        counted = _Counted(mover, self._telemetry)
        status, known = yield from self._load(counted, name, buffer, expected)
        self._note(status, known=known)
        outdated = status is TransferStatus.MISSING or (
            status is TransferStatus.WRONG_SIZE and expected is not None and expected.crc is None
        )
        if expected is not None and outdated:
            self._catalog.forget(name, expected)
        elif expected is None and status is TransferStatus.OK:
            crc = crc32c(buffer) if known else None
            self._catalog.learn(name, Expectation(buffer.nbytes, crc))
        return status

    def close(self) -> None:
        """Have the catalog write what it knows to its file. May be repeated."""
        self._catalog.close()

    def _note(self, status: TransferStatus, *, known: bool) -> None:
        """Tell what the verification of a load came to, if it came so far."""
        result = Checked.VERIFIED if known else Checked.LENGTH_ONLY
        if status is not TransferStatus.OK:
            failed = _CHECKS.get(status)
            if failed is None:
                return
            unknown = status is TransferStatus.CORRUPT and not known
            result = Checked.NOT_KNOWN if unknown else failed
        self._telemetry.load_checked(result)

    def _load(
        self, mover: ChunkMover, name: str, buffer: memoryview, expected: Expectation | None
    ) -> Steps[tuple[TransferStatus, bool]]:
        """How it ended, and whether a checksum was there to compare with."""
        crc = expected.crc if expected is not None and self._verify != "off" else None
        known, facts = crc is not None, None
        if not known and self._verify == "require":
            facts = yield from mover.facts(name)
            if facts is None or facts.checksum is None:
                return TransferStatus.CORRUPT, known
        if expected is not None and expected.length != buffer.nbytes:
            return TransferStatus.WRONG_SIZE, known
        if mover.exact_size:
            return (yield from _attempt(mover, name, buffer, crc, canary=None)), known
        canary = secrets.randbelow(256)
        status = yield from _attempt(mover, name, buffer, crc, canary)
        if status is TransferStatus.WRONG_SIZE:
            status = yield from _attempt(mover, name, buffer, crc, canary ^ 0xFF)
        if status is TransferStatus.OK and (expected is None or facts is not None):
            facts = facts or (yield from mover.facts(name))
            known = facts is not None and facts.checksum is not None and self._verify != "off"
            status = _compare(facts, buffer, checksum=known)
        return status, known


class _Counted:
    """A mover whose reading requests are counted."""

    def __init__(self, mover: ChunkMover, telemetry: Telemetry) -> None:
        self._mover = mover
        self._telemetry = telemetry
        self.exact_size = mover.exact_size
        self.write = mover.write

    def read(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        status = yield from self._mover.read(name, buffer)
        self._telemetry.requests_ended(Verb.GET, _answer(status))
        return status

    def facts(self, name: str) -> Steps[ObjectFacts | None]:
        facts = yield from self._mover.facts(name)
        self._telemetry.requests_ended(Verb.HEAD, Answer.FAILED if facts is None else Answer.OK)
        return facts


def _answer(status: TransferStatus) -> Answer:
    return _ANSWERS.get(status, Answer.FAILED)


def _attempt(
    mover: ChunkMover, name: str, buffer: memoryview, crc: int | None, canary: int | None
) -> Procedure:
    """Load once; WRONG_SIZE if the slot's last byte may not have been written."""
    if canary is not None:
        buffer[-1] = canary
    status = yield from mover.read(name, buffer)
    if status is not TransferStatus.OK:
        return status
    if crc is not None:
        if crc32c(buffer) == crc:
            return TransferStatus.OK
        status = TransferStatus.CORRUPT
    return TransferStatus.WRONG_SIZE if buffer[-1] == canary else status


def _compare(facts: ObjectFacts | None, buffer: memoryview, *, checksum: bool) -> TransferStatus:
    """What the store says of the object against what is in the slot."""
    if facts is None:
        return TransferStatus.UNAVAILABLE
    if facts.size_bytes != buffer.nbytes:
        return TransferStatus.WRONG_SIZE
    if checksum and facts.checksum is not None and not facts.checksum.is_of(buffer):
        return TransferStatus.CORRUPT
    return TransferStatus.OK
