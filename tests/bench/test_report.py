"""What a run becomes: lines, verdicts, and the page in the repository."""

from __future__ import annotations

import json
import re

import pytest

from bench.cells import Measured
from bench.report import PAGE, RECORD, TABLES, lines, record
from bench.targets import TARGETS

PERCENT = re.compile(r"[\d.]+%")


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
    for name in set(TABLES) - {"scale"}:
        assert shown(name) == TABLES[name](run)


def test_the_page_shows_the_simulation_as_it_comes_out_here(run):
    """To half a percent: the index divides its keys by `hash()`, which is another in each run."""
    page, here = shown("scale"), TABLES["scale"](run)
    assert PERCENT.sub("%", page) == PERCENT.sub("%", here)
    shares = zip(PERCENT.findall(page), PERCENT.findall(here), strict=True)
    assert all(abs(float(one[:-1]) - float(other[:-1])) <= 0.5 for one, other in shares)


def shown(table):
    """What stands in the page between a table's markers."""
    head, begin, rest = PAGE.read_text().partition(f"<!-- begin {table} -->\n")
    text, end, _tail = rest.partition(f"<!-- end {table} -->")
    assert all((head, begin, end))
    return text
