"""Writes docs/stores.md by running everything that it states.

Usage: `python -m tests.s3_matrix.write_table`, some minutes. Needs every server of the table; exit
status 1 if one is missing or fails the contract suite.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

from kvferry_server.adapters.s3_credentials import Resolved
from kvferry_server.adapters.s3_preflight import S3Preflight
from kvferry_server.adapters.s3_types import (
    Credentials,
    Dialect,
    PreflightResult,
    RoundTrip,
    RoundTripFailed,
    S3Settings,
)
from tests.support.preflights import with_store
from tests.support.s3_servers import S3Server, available, server_classes, started

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "stores.md"
TITLES = {
    "ceph": "Ceph RGW",
    "seaweedfs": "SeaweedFS",
    "juicefs": "JuiceFS gateway",
    "rclone": "rclone serve s3",
    "moto": "moto",
    "localbucket": "localbucket",
}
"""The servers of the table in its order."""
SUITES = {"moto": "tests/stores/test_contract.py", "localbucket": "tests/stores/test_contract.py"}
MATRIX = "tests/s3_matrix/test_matrix.py"
SUITE_SECONDS = 900
_BAD = frozenset({"failure", "error", "skipped"})

_PAGE = """\
# Object stores

Every S3 server speaks its own dialect. Before the daemon uses a store, a preflight puts and gets
scratch bytes with NIXL, has boto3 compare what is stored, and settles on the first settings that
work; `kvferry check s3://bucket/prefix` shows the same. Nothing has to be configured: with an
endpoint of your own it tries path addressing and `checksum required` first.

This page is written by `python -m tests.s3_matrix.write_table`, which starts each server on one
machine, runs the preflight, tries the other checksum setting, and runs the contract suite of
object stores. Last run: {date}, nixl-cu12 {nixl}.

| Server | Version | The preflight chose | With `checksum supported` | Contract suite |
|---|---|---|---|---|
{rows}

`checksum required` sends a checksum only where S3 insists on one; `checksum supported` is the AWS
SDK's own default and sends one with every upload. A server that is not in the table is likely to
work if the preflight passes. AWS itself, whose default is tried in the other order, has not been
tested; moto in its place, under AWS's own names and with https, needs a region and keys only
([test](../tests/preflight/test_aws_names.py)).

`localbucket` accepts few connections at a time and drops the others, so that a daemon with its
default limits sees failures: the demo failed in three of three runs. With
`limits.max_inflight_chunks = 4` stores went through, but 21 to 48 of 512 lookups got no
answer, as more than 200 are asked at once; with `limits.max_probing_keys = 13` as well all went
well in three runs, at 29 to 35 lookups/s. It is good for small tests with both settings, not for
load.

The bucket's expiry rule ([cost](cost.md)) was written by `kvferry lifecycle` on Ceph, SeaweedFS and
moto; JuiceFS, rclone and localbucket have no such rules, and it says so.

## When the preflight fails

Its one line begins with what is wrong: `endpoint`, `credentials`, `bucket`, `region` or `checksum`,
and ends with what to change. The daemon serves meanwhile: lookups answer unknown, stores are shed,
and the preflight is tried again in the background.

The credentials need `s3:GetObject`, `s3:PutObject` and, for the scratch objects, `s3:DeleteObject`
on `bucket/prefix/*`, and `s3:ListBucket` on the bucket. Without `s3:ListBucket` a missing object
looks like a refusal: it counts as a miss, and as one more refusal in the metrics.
"""


class Row(NamedTuple):
    """One line of the table; `passed` if nothing in it is a failure."""

    text: str
    passed: bool


def measure(name: str) -> Row:
    """Run everything on one server."""
    with started(name) as server:
        chosen, other = try_settings(server)
        version = server.version()
    total, failed = run_suite(name)
    suite = f"{total - len(failed)} of {total}"
    if failed:
        suite += f", not {', '.join(failed)}"
    cells = (TITLES[name], version, chosen.report.settings or chosen.report.problem, other, suite)
    row = f"| {' | '.join(cells)} |"
    print(row, flush=True)  # noqa: T201 - it takes minutes, and says how far it is
    return Row(row, chosen.report.ready and not failed)


def try_settings(server: S3Server) -> tuple[PreflightResult, str]:
    """What the preflight chose, and what the SDK's default checksum setting does."""
    settings = S3Settings(server.bucket, "some/prefix", server.endpoint_url)
    keys = Credentials(server.access_key, server.secret_key)
    results: list[PreflightResult] = []
    others: list[str] = []

    def run(round_trip: RoundTrip) -> PreflightResult:
        preflight = S3Preflight(settings, round_trip, lambda: Resolved(keys, "the table"))
        results.append(preflight.run())
        others.append(default_checksum(server, settings, keys, round_trip))
        return results[0]

    with_store(settings, run)
    return results[0], others[0]


def default_checksum(
    server: S3Server, settings: S3Settings, keys: Credentials, round_trip: RoundTrip
) -> str:
    """What becomes of one object with `checksum supported`."""
    payload, key = os.urandom(100_001), settings.object_key("table/object")
    client = server.client()
    try:
        same = round_trip(Dialect("path", "supported"), keys, key, payload)
        stored = client.get_object(Bucket=server.bucket, Key=key)["Body"].read()
    except RoundTripFailed as failure:
        return str(failure).partition(" (")[0]
    finally:
        client.close()
    return "works" if same and stored == payload else "stores other bytes"


def run_suite(name: str) -> tuple[int, list[str]]:
    """How many tests of the contract ran on a server, and which failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # An empty marker expression undoes the default one, which leaves the matrix out.
        options = ["-q", "-m", "", "-k", name, f"--junit-xml={report}", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", SUITES.get(name, MATRIX), *options]
        subprocess.run(command, cwd=ROOT, check=False, timeout=SUITE_SECONDS, capture_output=True)
        cases = list(ET.parse(report).iter("testcase"))
    if not cases:
        sys.exit(f"no test of the contract ran on {name}")
    failed = [case.attrib["name"] for case in cases if any(child.tag in _BAD for child in case)]
    return len(cases), sorted(failed)


def main() -> int:
    """Write the page; 1 if a server is missing or fails."""
    parser = argparse.ArgumentParser(description="Write docs/stores.md by running it.")
    parser.parse_args()
    missing = [name for name in TITLES if not available(name)]
    if missing:
        programs = [program for name in missing for program in server_classes()[name].programs]
        sys.exit(f"not installed: {', '.join(programs)}")
    rows = [measure(name) for name in TITLES]
    page = _PAGE.format(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        nixl=importlib.metadata.version("nixl-cu12"),
        rows="\n".join(row.text for row in rows),
    )
    PAGE.write_text(page)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
