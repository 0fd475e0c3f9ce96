"""What the daemon measures while it works, as a port that an adapter implements.

Durations and what the engine's counters can't know. Every method may be called from any thread and
returns at once; none raises.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import Protocol

from .types import JobKind


@unique
class Verb(StrEnum):
    """A request to the object store by which it is paid; of a directory, the like of it."""

    PUT = "put"
    GET = "get"
    HEAD = "head"


@unique
class Answer(StrEnum):
    """How the object store answered a request."""

    OK = "ok"
    NOT_FOUND = "not_found"
    DENIED = "denied"
    FAILED = "failed"


@unique
class Checked(StrEnum):
    """What the verification of a load came to."""

    VERIFIED = "verified"
    """Length and checksum are right."""
    LENGTH_ONLY = "length_only"
    """The length is right; no checksum is known."""
    NOT_KNOWN = "not_known"
    """No checksum is known, and the policy requires one: nothing was moved."""
    CORRUPT = "corrupt"
    WRONG_SIZE = "wrong_size"


class Telemetry(Protocol):
    """Takes measurements. Times are in seconds."""

    def queue_waited(self, kind: JobKind, seconds: float) -> None:
        """A chunk's first attempt starts, so long after its job was accepted."""

    def transfer_ended(self, kind: JobKind, seconds: float) -> None:
        """An attempt to move a chunk ended, verification included, whatever its status."""

    def probe_ended(self, seconds: float) -> None:
        """A probe of some keys was answered or failed."""

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        """An RPC such as `Lookup` was answered with a code such as `OK`."""

    def lease_lost(self) -> None:
        """An engine's connection ended without a DetachRegion before: it died or was killed."""

    def requests_ended(self, verb: Verb, answer: Answer, count: int = 1) -> None:
        """The object store answered so many requests."""

    def load_checked(self, result: Checked) -> None:
        """A loaded chunk was verified."""

    def credentials_expire(self, unix_seconds: float | None) -> None:
        """The store's credentials in use expire at this time; None if they don't."""


class Silence:
    """`Telemetry` that nobody reads."""

    def queue_waited(self, kind: JobKind, seconds: float) -> None: ...

    def transfer_ended(self, kind: JobKind, seconds: float) -> None: ...

    def probe_ended(self, seconds: float) -> None: ...

    def call_ended(self, method: str, code: str, seconds: float) -> None: ...

    def lease_lost(self) -> None: ...

    def requests_ended(self, verb: Verb, answer: Answer, count: int = 1) -> None: ...

    def load_checked(self, result: Checked) -> None: ...

    def credentials_expire(self, unix_seconds: float | None) -> None: ...


SILENCE = Silence()
