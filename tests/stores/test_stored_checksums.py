"""The checksum that a store keeps of an object that another writer stored: read, and compared."""

from __future__ import annotations

import base64
import hashlib
import secrets
import subprocess
import sys
import zlib

import pytest
from awscrt.checksums import crc32c, crc64nvme

from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
from kvferry_server.adapters.s3_types import Credentials, S3Settings
from kvferry_server.adapters.stored_checksums import StoredChecksum, stored_checksum
from kvferry_server.core.telemetry import SILENCE, Checked
from kvferry_server.core.types import TransferStatus
from tests.support.fault_server import Fault, FaultServer
from tests.support.s3_servers import started

from .subjects import load_bytes, make_s3_store
from .test_integrity import SIZE, ScriptedMover, load

OK, CORRUPT = TransferStatus.OK, TransferStatus.CORRUPT
DATA = b"123456789"
VALUES = {
    "CRC64NVME": "ae8b14860a799888",
    "CRC32C": "e3069283",
    "CRC32": "cbf43926",
    "SHA1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}


COMPUTE = {
    "CRC64NVME": lambda data: crc64nvme(data).to_bytes(8, "big"),
    "CRC32C": lambda data: crc32c(data).to_bytes(4, "big"),
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}
ZEROS = StoredChecksum("ChecksumCRC32", COMPUTE["CRC32"](bytes(SIZE)))


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.mark.parametrize("algorithm", VALUES)
def test_every_algorithm_of_s3_is_understood(algorithm):
    found = stored_checksum({f"Checksum{algorithm}": encoded(bytes.fromhex(VALUES[algorithm]))})
    assert found is not None
    assert found.is_of(memoryview(bytearray(DATA)))
    assert not found.is_of(memoryview(bytearray(DATA[:-1])))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"ContentLength": 9},
        {"ChecksumCRC32C": encoded(bytes(4)), "ChecksumType": "COMPOSITE"},
        {"ChecksumCRC32C": "no base64-2"},
        {"ChecksumMD5": encoded(bytes(16))},
    ],
)
def test_what_says_nothing_of_the_whole_object_is_no_checksum(answer):
    assert stored_checksum(answer) is None


@pytest.fixture
def seen(monkeypatch) -> list[Checked]:
    seen: list[Checked] = []
    monkeypatch.setattr(SILENCE, "load_checked", seen.append)
    return seen


@pytest.mark.parametrize("policy", ["when-known", "require"])
def test_what_another_daemon_stored_is_compared_once_and_then_known(policy, seen):
    mover = ScriptedMover(bytes(SIZE), kept=ZEROS)
    rules = Integrity(ChecksumCatalog(), policy)
    for _ in range(3):
        assert load(rules, mover) is OK
    assert mover.size_requests == 1
    mover.content = b"\1" * SIZE
    assert load(rules, mover) is CORRUPT
    assert seen == [Checked.VERIFIED] * 3 + [Checked.CORRUPT]


@pytest.mark.parametrize(
    ("policy", "status", "result"),
    [
        ("when-known", CORRUPT, Checked.CORRUPT),
        ("require", CORRUPT, Checked.CORRUPT),
        ("off", OK, Checked.LENGTH_ONLY),
    ],
)
def test_other_bytes_than_the_store_says_are_corrupt(policy, status, result, seen):
    mover = ScriptedMover(b"\1" * SIZE, kept=ZEROS)
    assert load(Integrity(ChecksumCatalog(), policy), mover) is status
    assert seen == [result]


def test_require_moves_nothing_that_nobody_knows_a_checksum_of(seen):
    mover = ScriptedMover(bytes(SIZE))
    rules = Integrity(ChecksumCatalog(), "require")
    assert load(rules, mover) is CORRUPT
    mover.size_answer = None
    assert load(rules, mover) is CORRUPT
    assert mover.readings == []
    assert seen == [Checked.NOT_KNOWN] * 2


def test_damage_that_the_server_does_not_notice_is_noticed():
    """The server's HEAD tells the checksum of what was put; its GET gives other bytes."""
    data = secrets.token_bytes(64_000)
    with FaultServer() as server:
        settings = S3Settings(server.bucket, "p", server.endpoint_url)
        store = make_s3_store(settings, Credentials("k", "s"))
        try:
            assert store.preflight().ready
            kept = {"x-amz-checksum-crc32": encoded(COMPUTE["CRC32"](data))}
            server.add(Fault(method="HEAD", key="p/a", headers=kept))
            server.put("p/a", data[:-1] + bytes([data[-1] ^ 1]))
            assert load_bytes(store, "a", len(data))[0] is CORRUPT
            server.put("p/a", data)
            assert load_bytes(store, "a", len(data)) == (OK, data)
        finally:
            store.close()


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        *(("moto", algorithm) for algorithm in COMPUTE if algorithm != "CRC64NVME"),
        *(pytest.param("seaweedfs", each, marks=pytest.mark.matrix) for each in COMPUTE),
    ],
)
def test_what_boto3_stored_with_a_checksum_is_verified(name, algorithm, seen):
    data = secrets.token_bytes(64_000)
    with started(name) as server:
        client = server.client()
        store = make_s3_store(
            S3Settings(server.bucket, "p", server.endpoint_url),
            Credentials(server.access_key, server.secret_key),
        )
        try:
            assert store.preflight().ready
            kept = {
                "ChecksumAlgorithm": algorithm,
                f"Checksum{algorithm}": encoded(COMPUTE[algorithm](data)),
            }
            client.put_object(Bucket=server.bucket, Key="p/a", Body=data, **kept)
            assert load_bytes(store, "a", len(data)) == (OK, data)
            assert seen == [Checked.VERIFIED]
        finally:
            client.close()
            store.close()


def test_boto3_signs_with_its_own_code():
    """Not with the CRT's, that came along for its checksums."""
    code = (
        "import kvferry_server.adapters.s3_client, botocore.compat, botocore.auth\n"
        "print(botocore.compat.HAS_CRT, botocore.auth.AUTH_TYPE_MAPS['s3v4'].__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False", "S3SigV4Auth"]
