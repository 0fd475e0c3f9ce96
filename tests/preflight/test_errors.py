"""Every error of botocore has its diagnosis, on purpose."""

from __future__ import annotations

import inspect

import botocore.exceptions as aws
import pytest

from kvferry_server.adapters import s3_errors
from kvferry_server.adapters.s3_errors import diagnose
from kvferry_server.adapters.s3_types import S3Settings
from kvferry_server.core.types import TransferStatus

SETTINGS = S3Settings("bucket", endpoint_url="http://store.example:9000")

NOT_FROM_A_REQUEST = {
    # Base classes that nothing raises, and data files missing from the installation.
    "BaseEndpointResolverError",
    "DataNotFoundError",
    "UnknownServiceError",
    "ApiVersionNotFoundError",
    "MissingDependencyException",
    "MD5UnavailableError",
    # While credentials are looked for: `s3_credentials` explains those.
    "ConfigParseError",
    "ConfigNotFound",
    "InvalidConfigError",
    "InfiniteLoopConfigError",
    "InvalidIMDSEndpointError",
    "InvalidIMDSEndpointModeError",
    "LoginAuthorizationCodeError",
    "LoginError",
    "LoginInsufficientPermissions",
    "LoginRefreshRequired",
    "LoginTokenLoadError",
    "MetadataRetrievalError",
    "RefreshWithMFAUnsupportedError",
    "SSOError",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
    "UnknownCredentialError",
    "UnknownTokenProviderError",
    "InvalidSTSRegionalEndpointsConfigError",
    # Wrong entries of an AWS config file that reach the client: the last entry names AWS's files.
    "InvalidChecksumConfigError",
    "InvalidDefaultsMode",
    "InvalidEndpointConfigurationError",
    "InvalidEndpointDiscoveryConfigurationError",
    "InvalidMaxRetryAttemptsError",
    "InvalidProxiesConfigError",
    "InvalidRetryConfigurationError",
    "InvalidRetryModeError",
    "InvalidS3AddressingStyleError",
    "InvalidS3UsEast1RegionalEndpointConfigError",
    "UnknownFIPSEndpointError",
    "UnsupportedS3AccesspointConfigurationError",
    "UnsupportedS3ControlArnError",
    "UnsupportedS3ControlConfigurationError",
    "UnsupportedOutpostResourceError",
    # Wrong use of botocore, other services, stubs, paginators and waiters.
    "AliasConflictParameterError",
    "AwsChunkedWrapperError",
    "CapacityNotAvailableError",
    "InvalidExpressionError",
    "MissingParametersError",
    "OperationNotPageableError",
    "PaginationError",
    "RangeError",
    "ServiceNotInRegionError",
    "StubAssertionError",
    "StubResponseError",
    "UnStubbedResponseError",
    "UnknownClientMethodError",
    "UnknownKeyError",
    "UnknownParameterError",
    "UnknownServiceStyle",
    "UnknownSignatureVersionError",
    "UnseekableStreamError",
    "UnsupportedServiceProtocolsError",
    "ValidationError",
    "WaiterConfigError",
    "WaiterError",
}


def library_errors() -> list[type[Exception]]:
    return [
        each
        for each in vars(aws).values()
        if inspect.isclass(each)
        and issubclass(each, aws.BotoCoreError)
        and each is not aws.BotoCoreError
    ]


def test_every_error_of_the_library_is_mapped_or_known_not_to_come():
    specific = tuple(kind for kinds, *_ in s3_errors._RAISED[:-1] for kind in kinds)
    unmapped = {each.__name__ for each in library_errors() if not issubclass(each, specific)}
    assert unmapped <= NOT_FROM_A_REQUEST
    mapped = {each.__name__ for each in library_errors() if issubclass(each, specific)}
    assert not mapped & NOT_FROM_A_REQUEST


@pytest.mark.parametrize(
    ("error", "part", "status"),
    [
        (aws.EndpointConnectionError(endpoint_url="u"), "endpoint", TransferStatus.UNAVAILABLE),
        (aws.ConnectTimeoutError(endpoint_url="u"), "endpoint", TransferStatus.UNAVAILABLE),
        (aws.ReadTimeoutError(endpoint_url="u"), "endpoint", TransferStatus.UNAVAILABLE),
        (aws.ConnectionClosedError(endpoint_url="u"), "endpoint", TransferStatus.UNAVAILABLE),
        (aws.SSLError(endpoint_url="u", error="e"), "endpoint", TransferStatus.UNAVAILABLE),
        (aws.NoCredentialsError(), "credentials", TransferStatus.DENIED),
        (aws.InvalidRegionError(region_name="r"), "region", TransferStatus.INTERNAL),
        (aws.ParamValidationError(report="Invalid bucket"), "bucket", TransferStatus.INTERNAL),
        (aws.FlexibleChecksumError(error_msg="m"), "checksum", TransferStatus.UNAVAILABLE),
        (
            aws.InvalidRetryModeError(provided_retry_mode="m", valid_modes=()),
            "endpoint",
            TransferStatus.INTERNAL,
        ),
    ],
)
def test_errors_without_an_answer(error, part, status):
    found = diagnose(error, SETTINGS)
    assert (found.part, found.status) == (part, status)
    assert found.problem.startswith(f"{part}: ")


@pytest.mark.parametrize(
    ("status", "code", "part", "transfer"),
    [
        (404, "NoSuchBucket", "bucket", TransferStatus.MISSING),
        (404, "404", "bucket", TransferStatus.MISSING),
        (404, "NoSuchKey", "bucket", TransferStatus.MISSING),
        (400, "InvalidBucketName", "bucket", TransferStatus.DENIED),
        (403, "AccessDenied", "credentials", TransferStatus.DENIED),
        (403, "403", "credentials", TransferStatus.DENIED),
        (401, "Unauthorized", "credentials", TransferStatus.DENIED),
        (403, "InvalidAccessKeyId", "credentials", TransferStatus.DENIED),
        (403, "SignatureDoesNotMatch", "credentials", TransferStatus.DENIED),
        (400, "ExpiredToken", "credentials", TransferStatus.DENIED),
        (403, "RequestTimeTooSkewed", "credentials", TransferStatus.DENIED),
        (301, "PermanentRedirect", "region", TransferStatus.UNAVAILABLE),
        (400, "AuthorizationHeaderMalformed", "region", TransferStatus.UNAVAILABLE),
        (503, "SlowDown", "endpoint", TransferStatus.UNAVAILABLE),
        (503, "503", "endpoint", TransferStatus.UNAVAILABLE),
        (500, "InternalError", "endpoint", TransferStatus.UNAVAILABLE),
        (429, "TooManyRequests", "endpoint", TransferStatus.UNAVAILABLE),
        (400, "RequestTimeout", "endpoint", TransferStatus.UNAVAILABLE),
        (501, "NotImplemented", "checksum", TransferStatus.UNAVAILABLE),
        (400, "XAmzContentSHA256Mismatch", "checksum", TransferStatus.UNAVAILABLE),
        (418, "Teapot", "endpoint", TransferStatus.UNAVAILABLE),
    ],
)
def test_answers(status, code, part, transfer):
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found = diagnose(aws.ClientError(answer, "HeadBucket"), SETTINGS)
    assert (found.part, found.status) == (part, transfer)


def test_a_code_can_hold_no_line_and_no_story():
    answer = {"Error": {"Code": "a\n" + "b {x} " * 99}, "ResponseMetadata": {"HTTPStatusCode": 418}}
    problem = diagnose(aws.ClientError(answer, "HeadBucket"), SETTINGS).problem
    assert "\n" not in problem
    assert "{" not in problem
    assert len(problem) < 300


def test_other_errors_pass_through():
    with pytest.raises(KeyError):
        diagnose(KeyError("bug"), SETTINGS)
