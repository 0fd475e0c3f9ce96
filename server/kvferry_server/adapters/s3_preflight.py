"""Tries an S3 store for real and settles on the settings that work, or says what is wrong.

Owns: the steps, their order and the choice of dialect. Chunks move by NIXL, whose errors have no
cause; so the round trip of the library is the proof, and boto3 is the witness that names the cause.
May import boto3's helpers and core.

Order: endpoint (name, TCP, TLS), credentials (found), bucket (exists, accepts the credentials, is
in this region), round trip (the library puts and gets scratch bytes; boto3 compares what is stored;
dialect after dialect until one works), clean-up.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from kvferry_server.core.ports import CheckStep, Preflight

from .s3_client import open_client
from .s3_credentials import Resolved, resolve_credentials
from .s3_endpoint import EndpointUnreachable, reach_endpoint
from .s3_errors import REQUEST_ERRORS, diagnose, error_code, gives_no_reason
from .s3_types import (
    Addressing,
    ChecksumMode,
    Credentials,
    CredentialsUnavailable,
    Dialect,
    PreflightResult,
    RoundTrip,
    RoundTripFailed,
    S3Settings,
)
from .stored_checksums import stored_checksum

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SCRATCH = ".kvferry-preflight"
"""Folder below the store's prefix for the bytes that a preflight moves."""
PAYLOAD_BYTES = (64 << 10) + 1
"""More than one aws-chunked frame of any SDK would hide, and not a multiple of anything."""


class S3Preflight:
    """The preflight of one store; each run is independent and reads credentials anew.

    Args:
        settings: where the store is.
        round_trip: moves bytes there and back with the library that moves chunks.
        resolve: finds credentials; raises CredentialsUnavailable.
    """

    def __init__(
        self,
        settings: S3Settings,
        round_trip: RoundTrip,
        resolve: Callable[[], Resolved] = resolve_credentials,
    ) -> None:
        self._settings = settings
        self._round_trip = round_trip
        self._resolve = resolve

    def run(self) -> PreflightResult:
        """Blocking, for seconds at most: try everything in order, up to the first failure."""
        steps = _Steps(self._settings)
        try:
            with steps.step("endpoint") as note:
                note.detail = _endpoint(self._settings)
            with steps.step("credentials") as note:
                credentials, source = self._credentials()
                note.detail = f"found in {source}"
            with steps.step("bucket") as note:
                addressing, note.detail = find_bucket(self._settings, credentials)
            dialect = self._settle(steps, credentials, addressing)
        except _Problem as problem:
            return PreflightResult(Preflight(False, "", str(problem), tuple(steps.done)))  # noqa: FBT003 - the port's order
        report = Preflight(True, dialect.words, "", tuple(steps.done))  # noqa: FBT003 - the port's order
        return PreflightResult(report, dialect, credentials)

    def _credentials(self) -> Resolved:
        try:
            return self._resolve()
        except CredentialsUnavailable as error:
            raise _Problem(f"credentials: {error}") from None

    def _settle(self, steps: _Steps, credentials: Credentials, addressing: Addressing) -> Dialect:
        client = open_client(self._settings, credentials, addressing)
        scratch = _Scratch(client, self._settings)
        try:
            with steps.step("round trip") as note:
                dialect = self._first_working(scratch, credentials, addressing, note)
            with steps.step("clean-up") as note:
                note.detail = scratch.clean() or "scratch objects deleted"
        except _Problem:
            scratch.clean()
            raise
        finally:
            client.close()
        return dialect

    def _first_working(
        self, scratch: _Scratch, credentials: Credentials, addressing: Addressing, note: _Note
    ) -> Dialect:
        payload = os.urandom(PAYLOAD_BYTES)
        tried: list[str] = []
        for dialect in dialects(self._settings, addressing):
            key = scratch.new_key()
            failure = self._try(scratch, dialect, credentials, key, payload)
            if not failure:
                note.detail = "; ".join([*tried, f"the same bytes came back ({dialect.words})"])
                return replace(dialect, tells_checksums=scratch.tells_checksums(key, payload))
            tried.append(failure)
            note.detail = "; ".join(tried)
        raise _Problem(scratch.explain(payload, tried))

    def _try(
        self,
        scratch: _Scratch,
        dialect: Dialect,
        credentials: Credentials,
        key: str,
        payload: bytes,
    ) -> str:
        """Empty if this dialect works, else what happened."""
        try:
            same = self._round_trip(dialect, credentials, key, payload)
        except RoundTripFailed as error:
            return str(error)
        if same and scratch.holds(key, payload):
            return ""
        return f"{_OTHER_BYTES} ({dialect.words})"


def dialects(settings: S3Settings, addressing: Addressing) -> tuple[Dialect, ...]:
    """What to try, most promising first, given the addressing that the bucket answered to.

    With an endpoint of one's own the SDK's newer checksums are the exception, not the rule.
    """
    modes: tuple[ChecksumMode, ...] = ("required", "supported")
    if not settings.endpoint_url:
        modes = ("supported", "required")
    return tuple(Dialect(addressing, mode) for mode in modes)


def addressings(settings: S3Settings) -> tuple[Addressing, ...]:
    """Path first with an endpoint of one's own; never a bucket in front of an IP address."""
    if not settings.endpoint_url:
        return ("virtual", "path")
    host = urlsplit(settings.endpoint_url).hostname or ""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return ("path",)
    return ("path",) if "." not in host else ("path", "virtual")


_OTHER_BYTES = "other bytes were stored than sent"


class _Problem(Exception):
    """Ends a preflight; the text is its one line."""


class _Note:
    """What a step found."""

    detail = ""


class _Steps:
    """Records steps with their time; a request that fails in one becomes its problem."""

    def __init__(self, settings: S3Settings) -> None:
        self.done: list[CheckStep] = []
        self._settings = settings

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[_Note]:
        began = time.monotonic()
        note = _Note()
        problem: _Problem | None = None
        try:
            yield note
        except _Problem as error:
            problem = error
        except REQUEST_ERRORS as error:
            problem = _Problem(diagnose(error, self._settings).problem)
        detail = note.detail or str(problem or "")
        seconds = time.monotonic() - began
        self.done.append(CheckStep(name, problem is None, detail, seconds))
        if problem is not None:
            raise problem


def _endpoint(settings: S3Settings) -> str:
    try:
        url = settings.endpoint_url or aws_endpoint(settings)
        return reach_endpoint(url, settings.ca_bundle)
    except EndpointUnreachable as error:
        raise _Problem(f"endpoint: {error}") from None


def aws_endpoint(settings: S3Settings) -> str:
    """AWS's own endpoint of the region, as boto3 knows it."""
    client = open_client(settings, Credentials("unused", "unused"), "path")
    try:
        return client.meta.endpoint_url
    finally:
        client.close()


def find_bucket(settings: S3Settings, credentials: Credentials) -> tuple[Addressing, str]:
    """The addressing that the bucket answers to, and what it said."""
    failures: list[Exception] = []
    for addressing in addressings(settings):
        client = open_client(settings, credentials, addressing)
        try:
            return addressing, _head_bucket(client, settings)
        except REQUEST_ERRORS as error:
            failures.append(error)
        finally:
            client.close()
    raise failures[0]


def _head_bucket(client: S3Client, settings: S3Settings) -> str:
    try:
        client.head_bucket(Bucket=settings.bucket)
    except ClientError as error:
        if not gives_no_reason(error, settings):
            raise
        return _list_bucket(client, settings)
    return "exists and accepts the credentials"


def _list_bucket(client: S3Client, settings: S3Settings) -> str:
    """Ask again in a way whose answer has a reason in its body."""
    try:
        client.list_objects_v2(Bucket=settings.bucket, MaxKeys=1)
    except ClientError as error:
        if error_code(error) != "AccessDenied":
            raise
        return "may not be listed (s3:ListBucket is not granted); the round trip decides"
    return "can be listed"


class _Scratch:
    """The scratch objects of one run, as boto3 sees them."""

    def __init__(self, client: S3Client, settings: S3Settings) -> None:
        self._client = client
        self._settings = settings
        self._keys: list[str] = []

    def new_key(self) -> str:
        """A key that nobody uses."""
        key = self._settings.object_key(f"{SCRATCH}/{secrets.token_hex(16)}")
        self._keys.append(key)
        return key

    def holds(self, key: str, payload: bytes) -> bool:
        """Whether exactly these bytes are stored."""
        answer = self._client.get_object(Bucket=self._settings.bucket, Key=key)
        with contextlib.closing(answer["Body"]) as body:
            return answer["ContentLength"] == len(payload) and body.read() == payload

    def tells_checksums(self, key: str, payload: bytes) -> bool:
        """Whether the server takes the question for an object's checksum, and doesn't lie."""
        try:
            answer = self._client.head_object(
                Bucket=self._settings.bucket, Key=key, ChecksumMode="ENABLED"
            )
        except REQUEST_ERRORS:
            return False
        checksum = stored_checksum(answer)
        return checksum is None or checksum.is_of(memoryview(payload))

    def explain(self, payload: bytes, tried: list[str]) -> str:
        """Why no dialect worked, if boto3 is not refused the same: then that error is raised."""
        key = self.new_key()
        self._client.put_object(Bucket=self._settings.bucket, Key=key, Body=payload)
        if not self.holds(key, payload) or any(_OTHER_BYTES in each for each in tried):
            return (
                "checksum: no checksum setting makes the server store the bytes that are sent: "
                f"use another S3 server or version ({'; '.join(tried)})"
            )
        return (
            "checksum: boto3 can store and load here, but NIXL can't with any checksum setting: "
            f"start with NIXL_LOG_LEVEL=INFO to see its own messages ({'; '.join(tried)})"
        )

    def clean(self) -> str:
        """Delete what was stored; empty, or what stays behind and why."""
        for key in self._keys:
            try:
                self._client.delete_object(Bucket=self._settings.bucket, Key=key)
            except REQUEST_ERRORS as error:
                problem = diagnose(error, self._settings).problem
                return f"objects stay in {SCRATCH}, delete failed: {problem}"
        return ""
