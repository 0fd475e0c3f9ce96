"""Checksums that an object store keeps of its objects, and whether a slot has the same.

Owns: which algorithms S3 knows and how their values are written. Imports nothing of kvferry.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from awscrt.checksums import crc32c, crc64nvme

_ALGORITHMS: Mapping[str, Callable[[memoryview], bytes]] = {
    "ChecksumCRC64NVME": lambda data: crc64nvme(data).to_bytes(8, "big"),
    "ChecksumCRC32C": lambda data: crc32c(data).to_bytes(4, "big"),
    "ChecksumCRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "ChecksumSHA256": lambda data: hashlib.sha256(data).digest(),
    "ChecksumSHA1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
}
"""By the field of a HEAD's answer; the cheapest first."""


@dataclass(frozen=True, slots=True)
class StoredChecksum:
    """What a store says of a whole object.

    Args:
        field: which algorithm.
        value: the checksum.
    """

    field: str
    value: bytes

    def is_of(self, data: memoryview) -> bool:
        """Whether these bytes have this checksum."""
        return _ALGORITHMS[self.field](data) == self.value


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a store says of an object.

    Args:
        size_bytes: its length.
        checksum: of the whole object; None if the store keeps none, or none that is known here.
    """

    size_bytes: int
    checksum: StoredChecksum | None = None


def stored_checksum(answer: Mapping[str, object]) -> StoredChecksum | None:
    """The checksum in a HEAD's answer.

    Those of the parts of a multipart upload say nothing of the whole object.
    """
    if answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    for field in _ALGORITHMS:
        text = answer.get(field)
        if isinstance(text, str):
            try:
                return StoredChecksum(field, base64.b64decode(text, validate=True))
            except binascii.Error:
                return None
    return None
