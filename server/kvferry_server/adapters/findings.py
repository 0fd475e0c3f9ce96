"""What a doctor found: one line for each thing looked at, with a cause and what to change.

Owns the vocabulary that the doctors of all stores share. Imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum, unique


@unique
class Level(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it could."""
    FAIL = "fail"


@unique
class Cause(IntEnum):
    """Class of a problem; the number is the exit status of `kvferry check`."""

    DNS = 10
    CONNECT = 11
    TLS = 12
    CLOCK = 13
    CREDENTIALS = 14
    BUCKET = 15
    REGION = 16
    PERMISSION = 17
    DIALECT = 18
    """Checksums or addressing."""
    ENDPOINT = 19
    """Something answers, but not as S3 does, or it is busy."""
    SLOW = 20
    DISK = 21
    OTHER = 1


PARTS = {
    "endpoint": Cause.ENDPOINT,
    "credentials": Cause.CREDENTIALS,
    "bucket": Cause.BUCKET,
    "region": Cause.REGION,
    "checksum": Cause.DIALECT,
}
"""The class behind the word with which a preflight's problem begins."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: such as "dns" or "s3:PutObject".
        level: how it is.
        detail: what was found, one line; never a credential.
        advice: what to change, one line: a setting or an IAM statement; empty if nothing.
        cause: class of the problem; None if there is none.
        seconds: how long it took.
    """

    name: str
    level: Level
    detail: str
    advice: str = ""
    cause: Cause | None = None
    seconds: float = 0.0


class Problem(Exception):
    """Ends what is being looked at; becomes a finding of level FAIL.

    Args:
        cause: class of the problem.
        detail: what is wrong.
        advice: what to change.
    """

    def __init__(self, cause: Cause, detail: str, advice: str = "") -> None:
        super().__init__(f"{detail}: {advice}" if advice else detail)
        self.cause = cause
        self.detail = detail
        self.advice = advice
