"""What a run becomes: lines, verdicts, and the page in the repository."""

from __future__ import annotations

import json

import pytest

from bench.cells import Measured
from bench.report import PAGE, RECORD, TABLES, lines, record
from bench.targets import TARGETS


def test_each_target_gets_a_line_with_its_verdict():
    found = {
        "rpc": Measured([1.1, 1.2, 1.3], [110, 120, 130], [100, 100, 100], "us"),
        "index": Measured([160.0, 161.0], [160.0, 161.0], unit="bytes/key"),
        "flood": Measured([1.0, 2.0, 1.9, 1.1], [1, 2, 2, 1], [1, 1, 1, 1], "ms"),
        "ceph-direct-store-1048576": Measured([1.0], [5.0], [5.0], "MB/s"),
    }
    run = record(found, 60.0, quick=True)
    text = list(lines(run))
    assert [line.split()[0] for line in text] == ["INCONCLUSIVE", "MET", "MISSED"]
    assert "1.20 [1.10, 1.30]" in text[1]
    assert "at most 1.5  warm 64-key lookup RPC, p50 / bare gRPC echo of equal size" in text[1]
    assert "160 [160, 161] bytes/key" in text[2]
    assert [row["name"] for row in run["shown"]] == ["ceph-direct-store-1048576"]
    assert json.loads(json.dumps(run)) == run


@pytest.fixture(scope="module")
def run():
    return json.loads(RECORD.read_text())


def test_the_record_has_every_target(run):
    assert {row["name"] for row in run["rows"]} == set(TARGETS)
    assert not run["quick"]


def test_the_page_says_what_the_record_says(run):
    page = PAGE.read_text()
    for name, table in TABLES.items():
        assert f"<!-- begin {name} -->\n{table(run)}<!-- end {name} -->" in page
