"""AWS settings and credentials by their standard names, from boto3's own chain.

Owns: where a bucket is (region, endpoint, CA bundle) and which keys open it, as environment
variables, profiles, web identities, containers and, last, instance metadata say. May import
botocore and core. Each call reads everything anew, so that a rotated file or token is seen. No text
from here holds a key: of a failure only its kind, names and codes are passed on, never what a
library or program printed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from botocore import credentials as providers
from botocore import exceptions as aws
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.httpsession import get_cert_path
from botocore.session import Session
from botocore.utils import validate_region_name

from kvferry_server.core.errors import ConfigError

from .s3_types import Credentials, CredentialsUnavailable, S3Settings

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
_WHERE = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
    "or give the daemon a role or web identity"
)


_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Of Debian and its kin, Red Hat and its kin, SUSE, Alpine."""


PROCESS_SECONDS = 30.0
"""For the program that `credential_process` names; botocore would wait for ever."""


class _Program:
    """One that ended in time, and saw nothing of what is set for NIXL's SDK alone."""

    def __init__(self, command: list[str], stdout: int, stderr: int) -> None:
        environ, limit = dict(os.environ), PROCESS_SECONDS
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own
                command, env=environ, stdout=stdout, stderr=stderr, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise CredentialsUnavailable(
                f"credential_process does not end within {limit:g} s: try it by hand"
            ) from None
        self.returncode = done.returncode
        self._printed = (done.stdout, done.stderr)

    def communicate(self) -> tuple[bytes, bytes]:
        """What it printed, on standard output and standard error."""
        return self._printed


class _ProcessProvider(providers.ProcessProvider):
    def __init__(self, profile_name: str, load_config: Callable[[], Any]) -> None:
        super().__init__(profile_name, load_config, _Program)


# botocore takes a program's class from its caller, but passes none on through its own chain.
providers.ProcessProvider = _ProcessProvider  # type: ignore[assignment,misc]


class Resolved(NamedTuple):
    """Keys with their expiry, and in words where they came from."""

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
    source = _words(found.method)
    for words, key in (
        ("access key", keys.access_key),
        ("secret key", keys.secret_key),
        ("session token", keys.token or ""),
    ):
        if _has_space(key):
            raise CredentialsUnavailable(
                f"the {words} from {source} has a space or line break in it: write it without "
                "(a secret made with `echo` ends with a line break; `echo -n` writes none)"
            )
    resolved = Credentials(keys.access_key, keys.secret_key, keys.token or "", _expiry(found))
    return Resolved(resolved, source)


def credential_files() -> tuple[Path, ...]:
    """Files that hold credentials or lead to them, whether they exist or not."""
    session = Session()
    names = [
        session.get_config_variable("credentials_file"),
        session.get_config_variable("config_file"),
        os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"),
        os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ]
    with contextlib.suppress(aws.BotoCoreError):
        names.append(session.get_scoped_config().get("web_identity_token_file"))
    return tuple(Path(name).expanduser() for name in names if name)


def _expiry(found: object) -> float | None:
    """Unix seconds when the keys expire, if their source said so; botocore has no public name."""
    expiry = getattr(found, "_expiry_time", None)
    return expiry.timestamp() if isinstance(expiry, datetime) else None


def settings_from_environment(bucket: str, prefix: str = "") -> S3Settings:
    """Complete a bucket and prefix by AWS's variables and the chosen profile.

    `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`,
    `AWS_CA_BUNDLE`; `AWS_PROFILE` and its region, endpoint_url, services and ca_bundle entries.
    Without a CA bundle it is the system's: each library would look in a place of its own else, and
    NIXL's only where Red Hat has it.

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
    region = region or profile.get("region") or DEFAULT_REGION
    _check_region(region)
    endpoint = ConfiguredEndpointProvider(everything, profile, "s3").provide() or ""
    _check_endpoint_url(endpoint)
    if ca_bundle and not Path(ca_bundle).is_file():
        raise ConfigError(
            "AWS_CA_BUNDLE names no readable file",
            reason="AWS_CA_BUNDLE",
            field="AWS_CA_BUNDLE",
        )
    if not ca_bundle and not endpoint.startswith("http:"):
        ca_bundle = _system_bundle()
    return S3Settings(
        bucket=bucket,
        prefix=prefix,
        endpoint_url=endpoint.rstrip("/"),
        region=region,
        ca_bundle=ca_bundle,
    )


def _system_bundle() -> str:
    """The file of the authorities that the system trusts; without one, that of boto3."""
    places = (os.environ.get("SSL_CERT_FILE", ""), *_SYSTEM_BUNDLES)
    return next(
        (place for place in places if Path(place).is_file()), get_cert_path(verify=True) or ""
    )


def _has_space(text: str) -> bool:
    return any(each.isspace() or not each.isprintable() for each in text)


def _check_region(region: str) -> None:
    with contextlib.suppress(aws.InvalidRegionError):
        validate_region_name(region)
        if not _has_space(region):  # botocore lets a line break at the end pass
            return
    raise ConfigError(
        f"AWS_REGION: {region!r} is not a region's name; it must look like us-east-1",
        reason="AWS_REGION",
        field="AWS_REGION",
    )


def _check_endpoint_url(url: str) -> None:
    """An endpoint has a scheme, a host and nothing else; the text never repeats it."""
    if not url:
        return
    if _has_space(url):
        raise _bad_endpoint("it has a space or line break in it")
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
        raise _bad_endpoint("nothing may follow the host and port; the bucket is in the store URL")


def _bad_endpoint(why: str) -> ConfigError:
    return ConfigError(
        f"AWS_ENDPOINT_URL_S3 (or AWS_ENDPOINT_URL): {why}",
        reason="AWS_ENDPOINT_URL",
        field="AWS_ENDPOINT_URL_S3",
    )


def _explained(error: Exception) -> str:
    """What went wrong while looking for credentials, without what the source said."""
    for kind, explain in _EXPLANATIONS:
        if isinstance(error, kind):
            return explain(error)
    return f"AWS credentials can't be read ({type(error).__name__}): check AWS files and variables"


def _unknown_profile(error: Any) -> str:  # noqa: ANN401 - botocore's errors have no typed fields
    name = error.kwargs["profile"]
    return f"AWS_PROFILE names {name!r}, which neither the AWS config nor credentials file has"


def _partial(error: Any) -> str:  # noqa: ANN401 - same
    source, missing = error.kwargs["provider"], error.kwargs["cred_var"]
    return f"AWS credentials from {_words(source)} are incomplete: {missing} is missing"


def _unreadable_file(error: Any) -> str:  # noqa: ANN401 - same
    return f"the AWS file {error.kwargs['path']} can't be read: correct it or its name"


def _failed_source(error: Any) -> str:  # noqa: ANN401 - same
    return f"{_words(error.kwargs['provider'])} gave no AWS credentials: try it by hand"


def _refused_by_sts(error: Any) -> str:  # noqa: ANN401 - same
    code = error.response.get("Error", {}).get("Code", "")
    return f"AWS's token service refused ({code}): check the role, its trust policy and the token"


def _unreachable_sts(_: Exception) -> str:
    return (
        "AWS's token service can't be reached: check the network, AWS_REGION, AWS_ENDPOINT_URL_STS"
    )


def _no_region(_: Exception) -> str:
    return "AWS's token service needs a region: set AWS_REGION"


def _unreadable(error: Any) -> str:  # noqa: ANN401 - same
    return f"a file with AWS credentials can't be read ({error.strerror}): check its name and mode"


def _words(source: str) -> str:
    return _SOURCES.get(source, source)


_EXPLANATIONS: tuple[tuple[type[Exception], Callable[[Exception], str]], ...] = (
    (aws.ProfileNotFound, _unknown_profile),
    (aws.PartialCredentialsError, _partial),
    (aws.ConfigParseError, _unreadable_file),
    (aws.ConfigNotFound, _unreadable_file),
    (aws.CredentialRetrievalError, _failed_source),
    (aws.ClientError, _refused_by_sts),
    (aws.ConnectionError, _unreachable_sts),
    (aws.HTTPClientError, _unreachable_sts),
    (aws.NoRegionError, _no_region),
    (OSError, _unreadable),
)
"""First that fits wins."""
