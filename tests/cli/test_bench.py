"""`kvferry bench` from end to end, on a directory and on an S3 server; it leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from subprocess import PIPE

import pytest

from kvferry_server.cli.bench import _Engine
from kvferry_server.core.errors import Unavailable
from tests.cli.harness import environment, kvferry
from tests.support.s3_servers import started

SHORT = ("--pairs", "2", "--megabytes", "1")


@pytest.fixture
def clean():
    with tempfile.TemporaryDirectory(prefix="kvferry-t-") as temporary:
        yield environment(TMPDIR=temporary)
        assert list(Path(temporary).iterdir()) == []


def test_it_measures_a_directory(clean):
    done = kvferry("bench", *SHORT, "--json", env=clean)
    assert done.status == 0, done.err
    sizes = json.loads(done.out)["sizes"]
    assert [each["chunk_bytes"] for each in sizes] == [256 << 10, 1 << 20, 8 << 20]
    for each in sizes:
        assert each["pairs"] == 2
        for name in ("store", "load"):
            assert each[f"{name}_mb_per_second"] > 0
            ratio = each[f"{name}_by_store_alone"]
            assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]


def test_its_table_is_for_people(clean):
    done = kvferry("bench", *SHORT, env=clean)
    assert done.status == 0, done.err
    assert "store file:///" in done.out
    assert "256 KiB" in done.out
    assert "256 KiB chunks: pair 1 of 2" in done.err


def test_nothing_stays_in_the_bucket(clean):
    with started("moto") as server:
        url = f"s3://{server.bucket}/kv"
        done = kvferry("bench", url, *SHORT, env=clean | server.environment())
        assert done.status == 0, done.err
        listed = server.client().list_objects_v2(Bucket=server.bucket)
        assert listed.get("Contents", []) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--pairs", "1"), "--pairs must be a whole number of 2 or more"),
        (("--megabytes", "x"), "--megabytes must be a whole number"),
        (("ftp://x",), "store"),
    ],
)
def test_wrong_use_says_what_to_change(clean, arguments, word):
    done = kvferry("bench", *arguments, env=clean)
    assert done.status == 2
    assert word in done.err


def test_an_engine_s_side_that_has_ended_is_named():
    process = subprocess.Popen(["true"], stdin=PIPE, stdout=PIPE, text=True)
    process.wait()
    with process, pytest.raises(Unavailable, match="the engine's side ended"):
        _Engine(process, 1).keys("name")


def test_a_store_that_is_gone_is_one_line(clean):
    gone = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k"}
    done = kvferry("bench", "s3://bucket/p", env=clean | gone | {"AWS_SECRET_ACCESS_KEY": "s"})
    assert done.status == 1
    assert len(done.err.strip().splitlines()) == 1
    assert "127.0.0.1" in done.err
