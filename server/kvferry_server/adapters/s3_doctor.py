"""Looks at an S3 store thing by thing and says which setting or grant to change.

Owns: the order of the looks, their words and the class of each problem. It moves no chunk: the
object store's own preflight, run after it, is the proof. Imports boto3's helpers and core.

Order: DNS, TCP, TLS, clock, credentials, bucket, then each permission on a scratch object. The
first thing without which the next can't be tried ends it; permissions are all tried.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.exceptions import ClientError, ReadTimeoutError

from .findings import PARTS, Cause, Finding, Level, Problem
from .s3_client import open_client
from .s3_credentials import Resolved, resolve_credentials
from .s3_endpoint import (
    Addresses,
    Endpoint,
    certificate,
    connect,
    greet,
    look_up,
    shake_hands,
    speaks_tls,
)
from .s3_errors import REQUEST_ERRORS, diagnose, error_code, http_status
from .s3_preflight import SCRATCH, aws_endpoint, find_bucket
from .s3_types import Addressing, Credentials, CredentialsUnavailable, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SKEW_REFUSED_SECONDS = 900.0
"""S3 refuses requests whose time is further off."""
SKEW_SECONDS = 60.0
EXPIRY_SECONDS = 300.0
CERTIFICATE_SECONDS = 7 * 86_400.0
PAYLOAD = b"kvferry check"
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_NEEDED_FOR = {
    "s3:PutObject": "without it nothing is stored",
    "s3:GetObject": "without it nothing is loaded",
    "s3:ListBucket": "without it a missing object answers 403, so no miss is ever remembered",
    "s3:DeleteObject": "without it the bytes of each check stay behind; chunks need it not",
}
_OPTIONAL = frozenset({"s3:ListBucket", "s3:DeleteObject"})


class S3Doctor:
    """The looks at one store.

    Args:
        settings: where the store is.
        resolve: finds credentials; raises CredentialsUnavailable.
        now: Unix time in seconds.
    """

    def __init__(
        self,
        settings: S3Settings,
        resolve: Callable[[], Resolved] = resolve_credentials,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._resolve = resolve
        self._now = now
        self._found: list[Finding] = []

    def look(self) -> list[Finding]:
        """Blocking, for seconds at most: everything up to what can't be got past."""
        self._found = []
        try:
            self._network()
            credentials = self._credentials()
            addressing = self._bucket(credentials)
        except Problem:
            return self._found
        client = open_client(self._settings, credentials, addressing)
        try:
            self._permissions(client)
        except Problem:
            pass
        finally:
            client.close()
        return self._found

    @contextlib.contextmanager
    def trial(self) -> Iterator[str]:
        """URL of the store itself: what is tried there bears scratch names."""
        yield f"s3://{self._settings.bucket}/{self._settings.prefix}"

    def delete(self, *names: str) -> None:
        """Blocking: remove objects by their names relative to the prefix, if that is allowed."""
        with self._client() as client, contextlib.suppress(*REQUEST_ERRORS):
            for name in names:
                key = self._settings.object_key(name)
                client.delete_object(Bucket=self._settings.bucket, Key=key)

    @contextlib.contextmanager
    def _client(self) -> Iterator[S3Client]:
        credentials = self._resolve().credentials
        addressing, _words = find_bucket(self._settings, credentials)
        client = open_client(self._settings, credentials, addressing)
        try:
            yield client
        finally:
            client.close()

    def _network(self) -> None:
        url = self._settings.endpoint_url or aws_endpoint(self._settings)
        self._check_endpoint_name(url)
        endpoint = Endpoint.of(url)
        with self._step("dns") as note:
            addresses = look_up(endpoint)
            known = sorted({str(each[-1][0]) for each in addresses})
            is_address = known == [endpoint.host]
            found = "an address" if is_address else ", ".join(known[:4])
            note.detail = f"{endpoint.host} is {found}"
        with self._step("tcp") as note:
            connection = connect(endpoint, addresses)
            note.detail = f"port {endpoint.port} accepts connections"
        with contextlib.closing(connection):
            if endpoint.tls:
                with self._step("tls") as note:
                    tls = shake_hands(connection, endpoint.host, self._settings.ca_bundle)
                    shown = certificate(tls)
                    days = (shown.expires_at - self._now()) / 86_400
                    note.detail = f"{shown.version}, certificate valid for {days:.0f} days more"
                    if shown.expires_at - self._now() < CERTIFICATE_SECONDS:
                        note.warn(Cause.TLS, "renew the server's certificate soon")
                with tls:
                    self._clock(tls, endpoint, addresses)
            else:
                self._clock(connection, endpoint, addresses)

    def _check_endpoint_name(self, url: str) -> None:
        """A bucket in the endpoint's name would stand there twice."""
        host = urlsplit(url).hostname or ""
        if not host.startswith(f"{self._settings.bucket}."):
            return
        with self._step("endpoint"):
            rest = url.replace(f"{self._settings.bucket}.", "", 1)
            raise Problem(
                Cause.DIALECT,
                "AWS_ENDPOINT_URL_S3 already holds the bucket, which would be named twice",
                f"set AWS_ENDPOINT_URL_S3={rest}",
            )

    def _clock(self, connection: object, endpoint: Endpoint, addresses: Addresses) -> None:
        with self._step("clock") as note:
            greeting = greet(connection, endpoint.host)  # type: ignore[arg-type]  # either socket
            suspicious = greeting is None or greeting.status == HTTPStatus.BAD_REQUEST
            if suspicious and not endpoint.tls and speaks_tls(endpoint, addresses):
                raise Problem(
                    Cause.TLS,
                    f"{endpoint.host} port {endpoint.port} speaks https, not http",
                    "use https:// in AWS_ENDPOINT_URL_S3, or correct its port",
                )
            if greeting is None:
                raise Problem(
                    Cause.ENDPOINT,
                    f"{endpoint.host} port {endpoint.port} does not speak HTTP",
                    "correct AWS_ENDPOINT_URL_S3 and its port",
                )
            if greeting.date is None:
                note.detail = "the server does not tell its time"
                return
            skew = self._now() - greeting.date
            note.detail = f"this machine's differs by {abs(skew):.0f} s from the server's"
            advice = "set this machine's clock (NTP), or the server's, whichever is wrong"
            if abs(skew) > SKEW_REFUSED_SECONDS:
                raise Problem(Cause.CLOCK, note.detail, advice)
            if abs(skew) > SKEW_SECONDS:
                note.warn(Cause.CLOCK, advice)

    def _credentials(self) -> Credentials:
        with self._step("credentials") as note:
            try:
                credentials, source = self._resolve()
            except CredentialsUnavailable as error:
                detail, _, advice = str(error).partition(": ")
                raise Problem(Cause.CREDENTIALS, detail, advice) from None
            note.detail = f"found in {source}"
            if credentials.expires_at is None:
                kind = "temporary" if credentials.session_token else "lasting"
                note.detail += f", {kind}, of no known expiry"
                return credentials
            left = credentials.expires_at - self._now()
            if left <= 0:
                raise Problem(
                    Cause.CREDENTIALS,
                    f"{note.detail}, expired {-left:.0f} s ago",
                    "renew them at their source",
                )
            note.detail += f", expire in {left / 60:.0f} min"
            if left < EXPIRY_SECONDS:
                note.warn(Cause.CREDENTIALS, "see that their source renews them in time")
            return credentials

    def _bucket(self, credentials: Credentials) -> Addressing:
        with self._step("bucket") as note:
            addressing, words = find_bucket(self._settings, credentials)
            note.detail = f"{self._settings.bucket} {words}, {addressing} addressing"
            return addressing

    def _permissions(self, client: S3Client) -> None:
        """Each right, on a scratch object; those that chunks can do without only warn."""
        bucket, key = self._settings.bucket, self._new_key()
        stored = self._grant(
            "s3:PutObject",
            lambda: client.put_object(Bucket=bucket, Key=key, Body=PAYLOAD),
        )
        if stored:
            self._grant("s3:GetObject", lambda: client.get_object(Bucket=bucket, Key=key))
        self._grant("s3:ListBucket", lambda: _must_be_404(client, bucket, self._new_key()))
        if stored:
            self._grant("s3:DeleteObject", lambda: client.delete_object(Bucket=bucket, Key=key))

    def _grant(self, action: str, act: Callable[[], object]) -> bool:
        """Try one right; whether it is granted.

        Raises:
            Problem: it failed for another reason than a missing right.
        """
        try:
            with self._step(action) as note:
                try:
                    act()
                except ClientError as error:
                    refused = http_status(error) in _REFUSALS
                    if not refused or _cause(error, self._settings) is not Cause.PERMISSION:
                        raise
                    detail = f"not granted; {_NEEDED_FOR[action]}"
                    advice = f"add to the policy of these credentials: {self._statement(action)}"
                    if action in _OPTIONAL:
                        note.detail = detail
                        note.warn(Cause.PERMISSION, advice)
                        return False
                    raise Problem(Cause.PERMISSION, detail, advice) from None
                note.detail = "granted"
        except Problem as problem:
            if problem.cause is Cause.PERMISSION:
                return False
            raise
        return True

    def _statement(self, action: str) -> str:
        """An IAM statement that grants it."""
        resource = f"arn:aws:s3:::{self._settings.bucket}"
        if action != "s3:ListBucket":
            resource += f"/{self._settings.object_key('*')}"
        return json.dumps({"Effect": "Allow", "Action": action, "Resource": resource})

    def _new_key(self) -> str:
        return self._settings.object_key(f"{SCRATCH}/{secrets.token_hex(16)}")

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[_Note]:
        """Make a finding of what happens inside.

        Raises:
            Problem: it failed.
        """
        began = time.monotonic()
        note = _Note()
        problem: Problem | None = None
        try:
            yield note
        except Problem as error:
            problem = error
        except REQUEST_ERRORS as error:
            problem = _problem(error, self._settings)
        seconds = time.monotonic() - began
        if problem is None:
            found = Finding(name, note.level, note.detail, note.advice, note.cause, seconds)
            self._found.append(found)
            return
        detail, advice, cause = problem.detail, problem.advice, problem.cause
        self._found.append(Finding(name, Level.FAIL, detail, advice, cause, seconds))
        raise problem


class _Note:
    """What a step found."""

    detail = ""
    advice = ""
    level = Level.OK
    cause: Cause | None = None

    def warn(self, cause: Cause, advice: str) -> None:
        """It works, but not as well as it could."""
        self.level, self.cause, self.advice = Level.WARN, cause, advice


def _must_be_404(client: S3Client, bucket: str, key: str) -> None:
    """Ask for an object that doesn't exist; who may list is told so.

    Raises:
        What a boto3 client raises for any other answer.
    """
    try:
        client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if http_status(error) != HTTPStatus.NOT_FOUND:
            raise


def _problem(error: Exception, settings: S3Settings) -> Problem:
    """What an error of a boto3 client means."""
    text = diagnose(error, settings).problem.partition(": ")[2]
    detail, _, advice = text.rpartition(": ")
    return Problem(_cause(error, settings), detail or text, advice if detail else "")


def _cause(error: Exception, settings: S3Settings) -> Cause:
    if isinstance(error, ReadTimeoutError):
        return Cause.SLOW
    if isinstance(error, ClientError):
        code = error_code(error)
        if code == "RequestTimeTooSkewed":
            return Cause.CLOCK
        unnamed = code in {"AccessDenied", "Forbidden", "403", "401", ""}
        if unnamed and http_status(error) in _REFUSALS:
            return Cause.PERMISSION
    return PARTS[diagnose(error, settings).part]
