"""What the preflight blames when a real server refuses something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvferry_server.adapters.s3_types import S3Settings
from tests.support.preflights import run_preflight
from tests.support.s3_servers import S3Server, started

from .test_matrix import SERVERS

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    with started(request.param) as found:
        yield found


def problem(server: S3Server, *keys: str, bucket: str = "") -> str:
    settings = S3Settings(bucket or server.bucket, "some/prefix", server.endpoint_url)
    return run_preflight(settings, *keys or (server.access_key, server.secret_key)).report.problem


def test_right_settings(server):
    assert problem(server) == ""


def test_S05_a_missing_bucket(server):
    assert problem(server, bucket="no-such-bucket").startswith("bucket: 'no-such-bucket' does not")


def test_a_wrong_secret(server):
    text = problem(server, server.access_key, "not-the-secret")
    assert text.startswith("credentials: ")
    assert "AWS_SECRET_ACCESS_KEY" in text


def test_a_wrong_key(server):
    text = problem(server, "nobody-knows-this-key", server.secret_key)
    assert text.startswith("credentials: ")
    assert "AWS_ACCESS_KEY_ID" in text


def test_S09_a_stopped_server(server):
    server.kill()
    try:
        assert problem(server).startswith("endpoint: nothing listens on 127.0.0.1")
    finally:
        server.start()
    assert problem(server) == ""


def test_a_frozen_server(server):
    server.freeze()
    try:
        assert "does not answer in time" in problem(server)
    finally:
        server.thaw()
    assert problem(server) == ""
