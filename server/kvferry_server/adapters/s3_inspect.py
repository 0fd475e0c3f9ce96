"""What has become of one object, after a transfer failed without saying why.

Owns: HEAD requests by boto3, some 3 ms of CPU each, hence never used where a transfer went well;
and the question whether a refusal is one of the keys or of a right. Imports boto3's helpers and
core only.

Threading: any thread. One request at a time; who comes while the endpoint has just been found
failing gets that answer again, so that fifty failed transfers cost one timeout, not fifty. Once the
keys are found refused, nothing is asked with them any more but by `check_keys`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from botocore.exceptions import ClientError

from kvferry_server.core.types import TransferStatus

from .s3_client import open_client
from .s3_errors import (
    REQUEST_ERRORS,
    Diagnosis,
    diagnose,
    gives_no_reason,
    http_status,
    refuses_keys,
)
from .s3_types import MADE_UP_NAME, Credentials, Dialect, S3Settings
from .stored_checksums import ObjectFacts, stored_checksum

_logger = logging.getLogger(__name__)

MEMORY_SECONDS = 1.0
"""How long a failing endpoint's answer is given without asking again."""
_REFUSED_KEYS = "credentials: the store refuses the keys in use; new ones are awaited"


class ObjectHead(NamedTuple):
    """What a HEAD found.

    Args:
        status: OK, or why there is no size: MISSING, DENIED, UNAVAILABLE, INTERNAL.
        facts: of the object if OK.
        problem: one line for people unless OK.
    """

    status: TransferStatus
    facts: ObjectFacts | None = None
    problem: str = ""


class S3Inspector:
    """Looks at objects of one store as the preflight found it can be reached."""

    def __init__(
        self,
        settings: S3Settings,
        dialect: Dialect,
        credentials: Credentials,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = open_client(settings, credentials, dialect.addressing)
        self._head_object = self._client.head_object
        if dialect.tells_checksums:
            self._head_object = partial(self._head_object, ChecksumMode="ENABLED")
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing = ObjectHead(TransferStatus.OK)
        self._failing_until = 0.0
        self._keys_refused = False
        self._complaint = ""

    @property
    def keys_refused(self) -> bool:
        """See `S3Inquiry`."""
        return self._keys_refused

    def check_keys(self) -> bool:
        """See `S3Inquiry`. Blocking, for some seconds at most."""
        with self._lock:
            reason = self._reason()
            self._keys_refused = reason is not None and refuses_keys(reason)
        return not self._keys_refused

    def head(self, name: str) -> ObjectHead:
        """Blocking, for some seconds at most: whether the object exists, and its size."""
        with self._lock:
            if self._keys_refused:
                return ObjectHead(TransferStatus.DENIED, problem=_REFUSED_KEYS)
            if self._monotonic() < self._failing_until:
                return self._failing
            found = self._ask(name)
            if found.status is TransferStatus.UNAVAILABLE:
                self._failing = found
                self._failing_until = self._monotonic() + MEMORY_SECONDS
            return found

    def facts_of(self, name: str) -> ObjectFacts | None:
        """See `S3Inquiry`. Blocking."""
        return self.head(name).facts

    def classify_load(self, name: str) -> TransferStatus:
        """Blocking: why a load failed: MISSING, DENIED, UNAVAILABLE.

        UNAVAILABLE too if the object looks fine now: then another try is worth it.
        """
        status = self.head(name).status
        return TransferStatus.UNAVAILABLE if status is TransferStatus.OK else status

    def classify_store(self, name: str) -> TransferStatus:
        """Blocking: why a store failed: DENIED, UNAVAILABLE.

        A HEAD can't tell a missing right to write; a store that may read but not write is
        UNAVAILABLE.
        """
        status = self.head(name).status
        return status if status is TransferStatus.DENIED else TransferStatus.UNAVAILABLE

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, name: str) -> ObjectHead:
        try:
            answer = self._head_object(
                Bucket=self._settings.bucket, Key=self._settings.object_key(name)
            )
        except REQUEST_ERRORS as error:
            found = diagnose(error, self._settings)
            if isinstance(error, ClientError) and gives_no_reason(error, self._settings):
                return self._refused(found)
            return ObjectHead(found.status, problem=found.problem)
        facts = ObjectFacts(answer["ContentLength"], stored_checksum(answer))
        return ObjectHead(TransferStatus.OK, facts)

    def _refused(self, found: Diagnosis) -> ObjectHead:
        """What a refusal without a reason means, as far as another question tells."""
        reason = self._reason()
        self._keys_refused = reason is not None and refuses_keys(reason)
        if self._keys_refused:
            found = Diagnosis(found.part, _REFUSED_KEYS, TransferStatus.DENIED)
        elif reason is not None and http_status(reason) == HTTPStatus.FORBIDDEN:
            found = diagnose(reason, self._settings)
        if found.problem != self._complaint:
            self._complaint = found.problem
            _logger.warning("%s", found.problem)
        return ObjectHead(found.status, problem=found.problem)

    def _reason(self) -> ClientError | None:
        """Ask in a way whose refusal has a reason in its body."""
        key = self._settings.object_key(MADE_UP_NAME)
        try:
            answer = self._client.get_object(Bucket=self._settings.bucket, Key=key)
        except ClientError as error:
            return error
        except REQUEST_ERRORS:
            return None
        with contextlib.closing(answer["Body"]):
            return None
