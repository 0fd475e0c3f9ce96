"""What a run becomes: lines and verdicts."""

from __future__ import annotations

import json

from bench.cells import Measured
from bench.report import lines, record


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
