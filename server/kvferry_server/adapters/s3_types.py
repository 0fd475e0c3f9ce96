"""Values that the S3 adapters share: where the bucket is, how to speak to it, with which keys.

Owns: the settings of one S3 store, the dialect that a preflight chooses, resolved credentials, and
the contract between the object store (NIXL) and what asks by boto3. Imports core only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from kvferry_server.core.ports import Preflight
from kvferry_server.core.secret import Secret
from kvferry_server.core.types import TransferStatus

from .stored_checksums import ObjectFacts

Addressing = Literal["path", "virtual"]
"""Bucket in the URL's path, or in its host name."""

ChecksumMode = Literal["required", "supported"]
"""When the SDK adds its own checksum to a request: only where S3 insists, or wherever it can."""


MADE_UP_NAME = "kvferry-probe/no-such-object"
"""Under the store's prefix; there is never an object of this name."""


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where an S3 store is.

    Args:
        bucket: name of the bucket.
        prefix: what every object key starts with, without slashes at its ends; may be empty.
        endpoint_url: `http(s)://host[:port]`; empty for AWS's own endpoint of the region.
        region: AWS region; `us-east-1` where the server does not care.
        ca_bundle: file with the certificates to trust; empty for the system's.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str = ""
    region: str = "us-east-1"
    ca_bundle: str = ""

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`, for people."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def object_key(self, name: str) -> str:
        """The bucket key of an object name that is relative to the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to speak to a server: S3 servers differ in what they accept.

    Args:
        addressing: where the bucket stands.
        checksum: when the SDK adds its own.
        tells_checksums: the server may be asked for the checksums that it keeps.
    """

    addressing: Addressing = "path"
    checksum: ChecksumMode = "required"
    tells_checksums: bool = False

    @property
    def words(self) -> str:
        """Such as "path addressing, checksum required"."""
        return f"{self.addressing} addressing, checksum {self.checksum}"


class Credentials:
    """One resolved set of keys.

    Args:
        access_key: the key's id; a secret too, so that no log names it.
        secret_key: signs requests.
        session_token: of temporary keys; may be empty.
        expires_at: Unix seconds after which the store refuses them; None if that is not known.
    """

    __slots__ = ("access_key", "expires_at", "secret_key", "session_token")

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        session_token: str = "",
        expires_at: float | None = None,
    ) -> None:
        self.access_key = Secret(access_key)
        self.secret_key = Secret(secret_key)
        self.session_token = Secret(session_token)
        self.expires_at = expires_at

    def same_as(self, other: Credentials) -> bool:
        """Whether these are the same keys."""
        return (
            self.access_key.same_as(other.access_key)
            and self.secret_key.same_as(other.secret_key)
            and self.session_token.same_as(other.session_token)
        )


class CredentialsUnavailable(Exception):
    """No usable credentials; the text says what was tried and what to change."""


class RoundTrip(Protocol):
    """Moves bytes to the store and back with the library that will move the chunks."""

    def __call__(
        self, dialect: Dialect, credentials: Credentials, key: str, payload: bytes
    ) -> bool:
        """Blocking: put `payload` under `key` (as in the bucket, prefix included), get it, compare.

        Returns:
            True if the same bytes came back, False if the transfer ended well but other bytes came.

        Raises:
            RoundTripFailed: a transfer failed; the text says which way.
        """


class RoundTripFailed(Exception):
    """A transfer of the round trip failed; the library gives no cause, only the direction."""


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """What a preflight found and what to go on with.

    Args:
        report: for people and for the port; `report.ready` tells whether the store can be used.
        dialect: the settings that worked; None if not ready.
        credentials: the keys that worked; None if not ready.
    """

    report: Preflight
    dialect: Dialect | None = None
    credentials: Credentials | None = None


class S3Inquiry(Protocol):
    """Questions about one object that NIXL can't answer: it gives no code and no size.

    All block for some seconds at most, and are called on threads of the object store's own. Names
    are relative to the store's prefix.
    """

    def facts_of(self, name: str) -> ObjectFacts | None:
        """Length of the object, and its checksum where the store keeps one; None if unknown."""

    def classify_load(self, name: str) -> TransferStatus:
        """Why a load failed: MISSING, DENIED or, worth another try, UNAVAILABLE."""

    def classify_store(self, name: str) -> TransferStatus:
        """Why a store failed: DENIED or, worth another try, UNAVAILABLE."""

    @property
    def keys_refused(self) -> bool:
        """Whether the store was last found to refuse the keys themselves; asks nothing.

        While it does, the other questions are answered DENIED without being asked.
        """

    def check_keys(self) -> bool:
        """Ask with a made-up name; True unless the store refuses the keys themselves."""

    def close(self) -> None:
        """Close the connections."""
