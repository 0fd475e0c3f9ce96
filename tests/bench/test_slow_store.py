"""The slow store behaves like S3 to a client, and is as slow as it is told."""

from __future__ import annotations

import time

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from bench import slow_store

CHUNK = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def server():
    with slow_store.running() as running:
        yield running


@pytest.fixture
def client(server):
    server.slow_down(0)
    made = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            retries={"total_max_attempts": 1},
            proxies={},
        ),
    )
    yield made
    made.close()


def test_objects_come_back(server, client):
    client.put_object(Bucket=server.bucket, Key="a/b.bin", Body=CHUNK)
    assert client.get_object(Bucket=server.bucket, Key="a/b.bin")["Body"].read() == CHUNK
    piece = client.get_object(Bucket=server.bucket, Key="a/b.bin", Range="bytes=5-9")
    assert piece["Body"].read() == CHUNK[5:10]
    assert client.head_object(Bucket=server.bucket, Key="a/b.bin")["ContentLength"] == len(CHUNK)
    client.delete_object(Bucket=server.bucket, Key="a/b.bin")
    for ask in (client.head_object, client.get_object):
        with pytest.raises(ClientError, match=r"404|NoSuchKey"):
            ask(Bucket=server.bucket, Key="a/b.bin")


def test_latency_and_bandwidth_are_lower_bounds_of_the_time(server, client):
    client.put_object(Bucket=server.bucket, Key="c", Body=CHUNK)
    server.slow_down(0.1)
    began = time.monotonic()
    client.head_object(Bucket=server.bucket, Key="c")
    assert time.monotonic() - began >= 0.1
    server.slow_down(0, 4 * len(CHUNK))
    began = time.monotonic()
    client.get_object(Bucket=server.bucket, Key="c")["Body"].read()
    assert time.monotonic() - began >= 0.25
