"""What a bucket's default encryption does for objects that NIXL stores, which asks for none."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import pytest

from kvferry_client import Outcome
from kvferry_server.adapters.s3_types import Credentials, S3Settings
from kvferry_server.core.types import TransferStatus
from tests.faults.rig import Scenario
from tests.stores.subjects import load_bytes, make_s3_store, store_bytes
from tests.support.s3_servers import SeaweedFS

RULE = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
OK = TransferStatus.OK


class EncryptingSeaweedFS(SeaweedFS):
    """With a key of its own, from which it derives those of objects."""

    def variables(self) -> dict[str, str]:
        return {"WEED_S3_SSE_KEY": secrets.token_hex(32)}


def files_with(directory: Path, text: bytes) -> list[Path]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if text in path.read_bytes()]


@pytest.mark.matrix
def test_default_encryption_of_the_bucket_encrypts_what_is_stored():
    server = EncryptingSeaweedFS()
    try:
        server.start()
        keys = Credentials(server.access_key, server.secret_key)
        settings = S3Settings(server.bucket, "p", server.endpoint_url)
        store = make_s3_store(settings, keys)
        client = server.client()
        try:
            assert store.preflight().ready
            plain, hidden = secrets.token_bytes(64), secrets.token_bytes(64)
            assert store_bytes(store, "plain", plain * 1000) is OK
            client.put_bucket_encryption(
                Bucket=server.bucket, ServerSideEncryptionConfiguration={"Rules": [RULE]}
            )
            assert store_bytes(store, "hidden", hidden * 1000) is OK
            head = client.head_object(Bucket=server.bucket, Key="p/hidden")
            assert head["ServerSideEncryption"] == "AES256"
            assert "ServerSideEncryption" not in client.head_object(
                Bucket=server.bucket, Key="p/plain"
            )
            assert load_bytes(store, "hidden", 64_000) == (OK, hidden * 1000)
            end = time.monotonic() + 20
            while not files_with(server.directory, plain):
                assert time.monotonic() < end, "the search finds nothing, so it proves nothing"
                time.sleep(0.2)
            assert files_with(server.directory, hidden) == []
        finally:
            client.close()
            store.close()
    finally:
        server.close()


@pytest.mark.parametrize(
    "default",
    [
        {"SSEAlgorithm": "AES256"},
        {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "arn:aws:kms:us-east-1:1:key/kvferry"},
    ],
    ids=["SSE-S3", "SSE-KMS"],
)
def test_what_a_daemon_stores_gets_the_default_encryption_of_the_bucket(default: dict[str, str]):
    """Moto encrypts nothing, but says as S3 does which encryption an object has."""
    scenario = Scenario("moto")
    try:
        client = scenario.server.client()
        client.put_bucket_encryption(
            Bucket=scenario.server.bucket,
            ServerSideEncryptionConfiguration={
                "Rules": [{"ApplyServerSideEncryptionByDefault": default}]
            },
        )
        scenario.start()
        keys = scenario.engine.stored()
        names = list(scenario.backing.objects())
        assert len(names) == len(keys)
        for name in names:
            head = client.head_object(Bucket=scenario.server.bucket, Key=name)
            assert head["ServerSideEncryption"] == default["SSEAlgorithm"]
            assert head.get("SSEKMSKeyId") == default.get("KMSMasterKeyID")
        client.close()
        scenario.engine.load(keys)
        assert scenario.engine.settle() == [Outcome.LOADED] * len(keys)
    finally:
        scenario.close()
