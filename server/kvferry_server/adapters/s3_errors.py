"""What a failed S3 request means: which setting is wrong, what to change, and how a chunk ends.

Owns: the map from botocore's errors and S3's codes to a diagnosis. Imports botocore and core only. Texts hold names, numbers and error
codes, never a key, and never a message that a server wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from kvferry_server.core.types import TransferStatus

from .s3_types import S3Settings

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
            return Diagnosis(part, f"{part}: {_filled(text, settings)}", status)
    raise error


def error_code(error: aws.ClientError) -> str:
    """S3's code for it, or the HTTP status as text where the answer had no body."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    return re.sub(r"[^A-Za-z0-9._-]", "", code)[:64]


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


def _refused(error: aws.ClientError, settings: S3Settings) -> Diagnosis:
    """An answer that is an error."""
    code, status, region = error_code(error), http_status(error), named_region(error)
    said = f"{status} {code}" if code and not code.isdigit() else f"{status}"
    if code in _REDIRECTS or HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return _wrong_region(region, settings, said)
    if status == HTTPStatus.BAD_REQUEST and region not in {"", settings.region}:
        return _wrong_region(region, settings, said)
    if code in _CREDENTIALS:
        return _diagnosis("credentials", _CREDENTIALS[code], settings, TransferStatus.DENIED)
    if code == "NoSuchKey":
        return _diagnosis("bucket", "{where} has no such object", settings, TransferStatus.MISSING)
    if status == HTTPStatus.NOT_FOUND:
        text = "{bucket!r} does not exist at {where}: create it or correct the store URL"
        return _diagnosis("bucket", text, settings, TransferStatus.MISSING)
    if code == "InvalidBucketName":
        text = "{bucket!r} is not a name that {where} takes: correct the store URL"
        return _diagnosis("bucket", text, settings, TransferStatus.DENIED)
    if code in _BUSY or status in {408, 429} or status in {500, 502, 503, 504}:
        text = f"{{where}} answers {said}: wait, or look at the server"
        return _diagnosis("endpoint", text, settings, TransferStatus.UNAVAILABLE)
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        text = f"{{where}} refuses them ({said}): {_GRANTS}, or {_CHECK_KEYS}"
        return _diagnosis("credentials", text, settings, TransferStatus.DENIED)
    if code in _CHECKSUM:
        text = f"{{where}} refuses how requests are signed or summed ({said}): look for its S3 settings"
        return _diagnosis("checksum", text, settings, TransferStatus.UNAVAILABLE)
    text = f"{{where}} answers {said}: check that AWS_ENDPOINT_URL_S3 is an S3 endpoint, and http or https"
    return _diagnosis("endpoint", text, settings, TransferStatus.UNAVAILABLE)


def _wrong_region(region: str, settings: S3Settings, said: str) -> Diagnosis:
    if region:
        text = f"{{bucket!r}} is in {region}, not in {{region}}: set AWS_REGION={region}"
    else:
        text = f"{{where}} sends requests for {{bucket!r}} elsewhere ({said}): set AWS_REGION to its region"
    return _diagnosis("region", text, settings, TransferStatus.UNAVAILABLE)


def _diagnosis(part: Part, text: str, settings: S3Settings, status: TransferStatus) -> Diagnosis:
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
        "{where} does not accept connections in time: check AWS_ENDPOINT_URL_S3, firewall and network",
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
