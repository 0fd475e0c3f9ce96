"""boto3 clients for the few requests that are not chunk transfers.

Owns: how such a client is set up, so that it speaks as the chunk transfers do and fails fast. May
import boto3 and core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from .s3_types import Addressing, Credentials, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_SECONDS = 2.0
READ_SECONDS = 3.0


def open_client(settings: S3Settings, credentials: Credentials, addressing: Addressing) -> S3Client:
    """A client of one attempt per request; the caller closes it.

    It follows no redirect to another region and uses no proxy, because the transfers of chunks
    don't either.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},
        s3={"addressing_style": addressing},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        proxies={},
    )
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=settings.endpoint_url or None,
        region_name=settings.region,
        aws_access_key_id=credentials.access_key.reveal(),
        aws_secret_access_key=credentials.secret_key.reveal(),
        aws_session_token=credentials.session_token.reveal() or None,
        verify=settings.ca_bundle or None,
        config=config,
    )
    client.meta.events.register("before-call.s3", _stay_in_region)
    return client


def _stay_in_region(params: dict[str, Any], **_: object) -> None:
    """Mark a request as redirected already, which turns botocore's redirects off."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True
