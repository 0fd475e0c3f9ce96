"""The bucket's rule that expires old chunks: shows it, and writes it beside the rules of others.

Owns: reading, merging and writing a lifecycle configuration. S3 replaces it as a whole, so every
other rule is written back as it was read, and what was written is read again. Imports boto3's
helpers and core.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

from botocore.exceptions import ClientError

from kvferry_server.core.errors import FailedPrecondition

from .s3_client import open_client
from .s3_credentials import resolve_credentials
from .s3_errors import REQUEST_ERRORS, diagnose, error_code, http_status
from .s3_preflight import find_bucket
from .s3_types import CredentialsUnavailable, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Rule = dict[str, Any]
"""As S3 has it."""

_SIZE_DEFAULT = "TransitionDefaultMinimumObjectSize"


class Lifecycle:
    """The lifecycle configuration of one store's bucket. A context manager: holds a connection.

    Args:
        settings: where the store is; its prefix must not be empty.

    Raises:
        FailedPrecondition: the bucket can't be reached or refuses; the text says what to change.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._client: S3Client
        self._defaults: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            credentials = resolve_credentials().credentials
            addressing, _words = find_bucket(self._settings, credentials)
        except CredentialsUnavailable as error:
            raise FailedPrecondition(f"credentials: {error}", reason="CREDENTIALS") from None
        except REQUEST_ERRORS as error:
            raise self._explained(error) from None
        self._client = open_client(self._settings, credentials, addressing)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._client.close()

    @property
    def rule_id(self) -> str:
        """The name of the store's own rule."""
        return f"kvferry {self._settings.prefix}"

    def rules(self) -> list[Rule]:
        """Blocking: every rule of the bucket.

        Raises:
            FailedPrecondition: the bucket refuses to show them.
        """
        try:
            found = self._client.get_bucket_lifecycle_configuration(Bucket=self._settings.bucket)
        except ClientError as error:
            if error_code(error) == "NoSuchLifecycleConfiguration":
                return []
            if http_status(error) == HTTPStatus.NOT_IMPLEMENTED:
                raise _without_rules() from None
            raise self._explained(error, "s3:GetLifecycleConfiguration") from None
        except REQUEST_ERRORS as error:
            raise self._explained(error) from None
        self._defaults = {k: v for k, v in found.items() if k == _SIZE_DEFAULT}
        if "Rules" not in found:
            raise _without_rules()
        return [dict(rule) for rule in found["Rules"]]

    def concerning(self, rules: Sequence[Rule]) -> list[Rule]:
        """Those that can touch the store's objects."""
        own = f"{self._settings.prefix}/"
        return [each for each in rules if _overlap(prefix_of(each), own)]

    def merged(self, rules: Sequence[Rule], days: int) -> list[Rule]:
        """The rules with the store's own one set to so many days, all others untouched."""
        own: Rule = {
            "ID": self.rule_id,
            "Filter": {"Prefix": f"{self._settings.prefix}/"},
            "Status": "Enabled",
            "Expiration": {"Days": days},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        }
        return [*(each for each in rules if each.get("ID") != self.rule_id), own]

    def write(self, rules: Sequence[Rule]) -> None:
        """Blocking: replace all rules of the bucket by these, and see that they are there.

        Raises:
            FailedPrecondition: the bucket refuses, or has other rules afterwards.
        """
        configuration: Any = {"Rules": list(rules)}
        try:
            self._client.put_bucket_lifecycle_configuration(
                Bucket=self._settings.bucket,
                LifecycleConfiguration=configuration,
                **self._defaults,
            )
        except REQUEST_ERRORS as error:
            raise self._explained(error, "s3:PutLifecycleConfiguration") from None
        written = {str(each.get("ID")) for each in self.rules()}
        missing = {str(each.get("ID")) for each in rules} - written
        if missing:
            raise FailedPrecondition(
                f"the bucket does not show the rules {', '.join(sorted(missing))} after they were "
                "written: somebody else writes its lifecycle, or the server ignores them",
                reason="LIFECYCLE",
            )

    def _explained(self, error: Exception, action: str = "") -> FailedPrecondition:
        grant = f" (needs {action} on the bucket)" if action else ""
        problem = diagnose(error, self._settings).problem
        return FailedPrecondition(f"{problem}{grant}", reason="LIFECYCLE")


def _without_rules() -> FailedPrecondition:
    return FailedPrecondition(
        "this server has no lifecycle rules, so old objects have to be removed by its own means; "
        "the daemon takes each as a miss",
        reason="LIFECYCLE",
    )


def prefix_of(rule: Rule) -> str:
    """What the names of the objects begin with that a rule is about; empty for all."""
    where = rule.get("Filter") or {}
    found = where.get("Prefix") or where.get("And", {}).get("Prefix") or rule.get("Prefix") or ""
    return str(found)


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
