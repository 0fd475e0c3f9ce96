"""What a failed S3 request means: which setting is wrong, what to change, and how a chunk ends.

Owns: the map from botocore's errors and S3's codes to a diagnosis. Imports botocore and core only.
Texts hold names, numbers and error codes, never a key, and never a message that a server wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, NamedTuple

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from kvferry_server.core.types import TransferStatus

from .s3_types import S3Settings

REQUEST_ERRORS = (aws.ClientError, aws.BotoCoreError, ResponseParserError)
"""What a boto3 client raises, be it made or used; `diagnose` explains each."""

Part = Literal["endpoint", "credentials", "bucket", "region", "checksum"]
"""The setting that is wrong."""

_GRANTS = "grant s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on the bucket"
_CHECK_KEYS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

_REDIRECTS = frozenset(
    {
        "PermanentRedirect",
        "TemporaryRedirect",
        "Redirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "InvalidRegion",
    }
)
_CREDENTIALS = {
    "InvalidAccessKeyId": f"the access key is not known there: {_CHECK_KEYS}",
    "InvalidClientTokenId": f"the access key is not known there: {_CHECK_KEYS}",
    "SignatureDoesNotMatch": f"the secret key does not fit the access key: {_CHECK_KEYS}",
    "ExpiredToken": "the session token has expired: renew it",
    "ExpiredTokenException": "the session token has expired: renew it",
    "TokenRefreshRequired": "the session token has expired: renew it",
    "InvalidToken": "the session token is not valid: renew it or unset AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "refused because this machine's clock is off: set the clock",
    "AccountProblem": "the account is blocked there: ask whoever runs the store",
}
_DEAD_KEYS = frozenset(_CREDENTIALS) - {"RequestTimeTooSkewed", "AccountProblem"}
"""Codes that other keys would cure."""
_CHECKSUM = frozenset(
    {
        "NotImplemented",
        "BadDigest",
        "InvalidDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "MissingContentLength",
    }
)
_BUSY = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestTimeout"})
_BUSY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a failed request means.

    Args:
        part: the setting that is wrong.
        problem: one line: what is wrong and what to change.
        status: how a chunk ends whose transfer failed for this cause.
    """

    part: Part
    problem: str
    status: TransferStatus


def diagnose(error: Exception, settings: S3Settings) -> Diagnosis:
    """Explain an error that a boto3 client raised.

    Raises:
        The error itself, if it is none of botocore's.
    """
    if isinstance(error, aws.ClientError):
        return _refused(error, settings)
    for classes, part, text, status in _RAISED:
        if isinstance(error, classes):
            return _diagnosis(part, text, status, settings)
    raise error


def error_code(error: aws.ClientError) -> str:
    """S3's code for it, or the HTTP status as text where the answer had no body."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    return re.sub(r"[^A-Za-z0-9._-]", "", code)[:64]


def refuses_keys(error: aws.ClientError) -> bool:
    """Whether the keys themselves are refused: unknown, expired or wrong, not lacking a right."""
    return error_code(error) in _DEAD_KEYS


def gives_no_reason(error: aws.ClientError, settings: S3Settings) -> bool:
    """Whether the answer to a HEAD, which has no body, leaves the reason of a refusal open."""
    refused = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    return http_status(error) in refused and named_region(error) in {"", settings.region}


def http_status(error: aws.ClientError) -> int:
    """HTTP status of the answer; 0 if unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def named_region(error: aws.ClientError) -> str:
    """The region that the answer says the bucket is in; empty if it doesn't say."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    body = error.response.get("Error", {})
    region = str(headers.get("x-amz-bucket-region") or body.get("Region") or "")
    return re.sub(r"[^A-Za-z0-9-]", "", region)[:64]


def where(settings: S3Settings) -> str:
    """The endpoint, in words."""
    return settings.endpoint_url or f"AWS's endpoint of {settings.region}"


class _Answer(NamedTuple):
    """An answer that is an error."""

    code: str
    status: int
    region: str

    @property
    def said(self) -> str:
        """Status and code, for people."""
        return (
            f"{self.status} {self.code}"
            if self.code and not self.code.isdigit()
            else f"{self.status}"
        )


class _Verdict(NamedTuple):
    """A diagnosis whose text still has placeholders."""

    part: Part
    text: str
    status: TransferStatus


def _refused(error: aws.ClientError, settings: S3Settings) -> Diagnosis:
    answer = _Answer(error_code(error), http_status(error), named_region(error))
    verdict = (
        _region_verdict(answer, settings)
        or _credentials_verdict(answer)
        or _bucket_verdict(answer)
        or _other_verdict(answer)
    )
    return _diagnosis(*verdict, settings)


def _region_verdict(answer: _Answer, settings: S3Settings) -> _Verdict | None:
    redirected = HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
    elsewhere = answer.status == HTTPStatus.BAD_REQUEST and answer.region not in {
        "",
        settings.region,
    }
    if not (answer.code in _REDIRECTS or redirected or elsewhere):
        return None
    text = (
        f"{{where}} sends {{bucket!r}} elsewhere ({answer.said}): "
        "set AWS_REGION to its region, or correct AWS_ENDPOINT_URL_S3 (http or https)"
    )
    if answer.region:
        region = answer.region
        text = f"{{bucket!r}} is in {region}, not in {{region}}: set AWS_REGION={region}"
    return _Verdict("region", text, TransferStatus.UNAVAILABLE)


def _credentials_verdict(answer: _Answer) -> _Verdict | None:
    if answer.code in _CREDENTIALS:
        return _Verdict("credentials", _CREDENTIALS[answer.code], TransferStatus.DENIED)
    if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        text = f"{{where}} refuses them ({answer.said}): {_GRANTS}, or {_CHECK_KEYS}"
        return _Verdict("credentials", text, TransferStatus.DENIED)
    return None


def _bucket_verdict(answer: _Answer) -> _Verdict | None:
    if answer.code == "NoSuchKey":
        return _Verdict("bucket", "{where} has no such object", TransferStatus.MISSING)
    if answer.status == HTTPStatus.NOT_FOUND:
        text = "{bucket!r} does not exist at {where}: create it or correct the store URL"
        return _Verdict("bucket", text, TransferStatus.MISSING)
    if answer.code == "InvalidBucketName":
        text = "{bucket!r} is not a name that {where} takes: correct the store URL"
        return _Verdict("bucket", text, TransferStatus.DENIED)
    return None


def _other_verdict(answer: _Answer) -> _Verdict:
    if answer.code in _BUSY or answer.status in _BUSY_STATUSES:
        text = f"{{where}} answers {answer.said}: wait, or look at the server"
        return _Verdict("endpoint", text, TransferStatus.UNAVAILABLE)
    if answer.code in _CHECKSUM:
        text = (
            f"{{where}} refuses how requests are signed or summed ({answer.said}): see its settings"
        )
        return _Verdict("checksum", text, TransferStatus.UNAVAILABLE)
    text = f"{{where}} answers {answer.said}: check AWS_ENDPOINT_URL_S3, its port, http or https"
    return _Verdict("endpoint", text, TransferStatus.UNAVAILABLE)


def _diagnosis(part: Part, text: str, status: TransferStatus, settings: S3Settings) -> Diagnosis:
    return Diagnosis(part, f"{part}: {_filled(text, settings)}", status)


def _filled(text: str, settings: S3Settings) -> str:
    return text.format(bucket=settings.bucket, region=settings.region, where=where(settings))


_RAISED: tuple[tuple[tuple[type[Exception], ...], Part, str, TransferStatus], ...] = (
    (
        (aws.SSLError,),
        "endpoint",
        "the TLS certificate of {where} is not trusted: set AWS_CA_BUNDLE to its CA's certificate",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (aws.ConnectTimeoutError,),
        "endpoint",
        "{where} accepts no connection in time: check AWS_ENDPOINT_URL_S3, firewall and network",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (aws.ReadTimeoutError,),
        "endpoint",
        "{where} accepts connections but does not answer in time: look at the server",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (aws.ConnectionError,),
        "endpoint",
        "nothing answers at {where}: check AWS_ENDPOINT_URL_S3 and that the server runs",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (aws.HTTPClientError, aws.IncompleteReadError),
        "endpoint",
        "{where} breaks connections off: look at the server, and check http or https",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (ResponseParserError,),
        "endpoint",
        "{where} does not answer as S3 does: check AWS_ENDPOINT_URL_S3 and its port",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (aws.UnknownEndpointError, aws.EndpointProviderError, aws.EndpointVariantError),
        "endpoint",
        "no address is known for {bucket!r} in {region}: check AWS_REGION and AWS_ENDPOINT_URL_S3",
        TransferStatus.INTERNAL,
    ),
    (
        (aws.InvalidRegionError, aws.NoRegionError, aws.UnknownRegionError),
        "region",
        "{region!r} is not a region's name: correct AWS_REGION",
        TransferStatus.INTERNAL,
    ),
    (
        (
            aws.NoCredentialsError,
            aws.PartialCredentialsError,
            aws.CredentialRetrievalError,
            aws.ProfileNotFound,
            aws.NoAuthTokenError,
        ),
        "credentials",
        f"none can be read: {_CHECK_KEYS}",
        TransferStatus.DENIED,
    ),
    (
        (aws.ChecksumError, aws.FlexibleChecksumError, aws.UnsupportedSignatureVersionError),
        "checksum",
        "{where} sends bytes that do not fit their checksum: look at the server",
        TransferStatus.UNAVAILABLE,
    ),
    (
        (
            aws.ParamValidationError,
            aws.InvalidDNSNameError,
            aws.InvalidHostLabelError,
            aws.UnsupportedS3ArnError,
            aws.UnsupportedS3ConfigurationError,
        ),
        "bucket",
        "{bucket!r} is not a name that S3 takes: correct the store URL",
        TransferStatus.INTERNAL,
    ),
    (
        (aws.BotoCoreError,),
        "endpoint",
        "AWS's settings for {where} can't be used: check the AWS variables and files",
        TransferStatus.INTERNAL,
    ),
)
"""Errors raised without an answer; the first that fits wins."""
