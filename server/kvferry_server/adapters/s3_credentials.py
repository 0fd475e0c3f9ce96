"""AWS settings and credentials by their standard names, from boto3's own chain.

Owns: where a bucket is (region, endpoint, CA bundle) and which keys open it, as environment variables, profiles, web
identities, containers and, last, instance metadata say. May import botocore and core. Each call reads
everything anew, so that a rotated file or token is seen. No text from here holds a key: of a failure only
its kind, names and codes are passed on, never what a library or program printed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from botocore import exceptions as aws
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.session import Session

from kvferry_server.core.errors import ConfigError

from .s3_types import Credentials, S3Settings

DEFAULT_REGION = "us-east-1"
_STS_CLIENT = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 2})
_SOURCES = {
    "env": "environment variables",
    "shared-credentials-file": "the shared credentials file",
    "config-file": "the AWS config file",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a web identity",
    "sso": "single sign-on",
    "login": "a login session",
    "custom-process": "credential_process",
    "container-role": "the container's role",
    "iam-role": "instance metadata",
}
_WHERE = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the daemon a role or web identity"


class CredentialsUnavailable(Exception):
    """No usable credentials; the text says what was tried and what to change."""


class Resolved(NamedTuple):
    """Keys, and in words where they came from."""

    credentials: Credentials
    source: str


def resolve_credentials() -> Resolved:
    """Blocking: find keys the way every AWS tool does.

    Instance metadata is asked only if nothing else is configured, for 1 s per request.

    Raises:
        CredentialsUnavailable: there are none, or their source failed.
    """
    session = Session()
    session.set_default_client_config(_STS_CLIENT)
    try:
        found = session.get_credentials()
        if found is None:
            raise CredentialsUnavailable(f"no AWS credentials found: {_WHERE}")
        keys = found.get_frozen_credentials()
    except (aws.BotoCoreError, aws.ClientError, OSError, ValueError) as error:
        raise CredentialsUnavailable(_explained(error)) from None
    if not (keys.access_key and keys.secret_key):
        raise CredentialsUnavailable(f"the AWS credentials found are empty: {_WHERE}")
    source = _SOURCES.get(found.method, found.method)
    return Resolved(Credentials(keys.access_key, keys.secret_key, keys.token or ""), source)


def settings_from_environment(bucket: str, prefix: str = "") -> S3Settings:
    """Complete a bucket and prefix by AWS's variables and the chosen profile.

    `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, `AWS_CA_BUNDLE`; `AWS_PROFILE`
    and its region, endpoint_url, services and ca_bundle entries.

    Raises:
        ConfigError: one of them can't be right; names it.
    """
    session = Session()
    try:
        profile = session.get_scoped_config()
        everything = session.full_config
        ca_bundle = session.get_config_variable("ca_bundle") or ""
    except aws.BotoCoreError as error:
        raise ConfigError(_explained(error), reason="AWS_PROFILE", field="AWS_PROFILE") from None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = ConfiguredEndpointProvider(everything, profile, "s3").provide() or ""
    _check_endpoint_url(endpoint)
    if ca_bundle and not Path(ca_bundle).is_file():
        raise ConfigError(
            "AWS_CA_BUNDLE names no readable file",
            reason="AWS_CA_BUNDLE",
            field="AWS_CA_BUNDLE",
        )
    return S3Settings(
        bucket=bucket,
        prefix=prefix,
        endpoint_url=endpoint.rstrip("/"),
        region=region or profile.get("region") or DEFAULT_REGION,
        ca_bundle=ca_bundle,
    )


def _check_endpoint_url(url: str) -> None:
    """An endpoint has a scheme, a host and nothing else; the text never repeats it."""
    if not url:
        return
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_endpoint("its port or host can't be read") from None
    if "@" in parts.netloc:
        raise _bad_endpoint("it holds a user or a key; credentials have variables of their own")
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise _bad_endpoint("it must look like http://host:port or https://host")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise _bad_endpoint(
            "it must end after the host and port; the bucket belongs to the store URL"
        )


def _bad_endpoint(why: str) -> ConfigError:
    return ConfigError(
        f"AWS_ENDPOINT_URL_S3 (or AWS_ENDPOINT_URL): {why}",
        reason="AWS_ENDPOINT_URL",
        field="AWS_ENDPOINT_URL_S3",
    )


def _explained(error: Exception) -> str:
    """What went wrong while looking for credentials, without what the source said."""
    if isinstance(error, aws.ProfileNotFound):
        name = error.kwargs["profile"]
        return (
            f"AWS_PROFILE names {name!r}, which is in neither the AWS config nor credentials file"
        )
    if isinstance(error, aws.PartialCredentialsError):
        missing, source = error.kwargs["cred_var"], error.kwargs["provider"]
        return f"AWS credentials from {_SOURCES.get(source, source)} are incomplete: {missing} is missing"
    if isinstance(error, aws.ConfigParseError | aws.ConfigNotFound):
        return f"the AWS file {error.kwargs['path']} can't be read: correct it or its name"
    if isinstance(error, aws.CredentialRetrievalError):
        source = error.kwargs["provider"]
        return f"{_SOURCES.get(source, source)} gave no AWS credentials: try it by hand"
    if isinstance(error, aws.ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        return f"the AWS token service refused to give credentials ({code}): check the role and its trust"
    if isinstance(error, aws.ConnectionError | aws.HTTPClientError):
        return "the AWS token service can't be reached: check the network, AWS_REGION, AWS_ENDPOINT_URL_STS"
    if isinstance(error, aws.NoRegionError):
        return "the AWS token service needs a region: set AWS_REGION"
    if isinstance(error, OSError):
        return (
            f"a file with AWS credentials can't be read ({error.strerror}): check its name and mode"
        )
    return (
        f"AWS credentials can't be read ({type(error).__name__}): check the AWS files and variables"
    )
