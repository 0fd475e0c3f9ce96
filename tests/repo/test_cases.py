"""docs/cases.md lists every reported bug with the tests that bear its id."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = dict(
    re.findall(
        r"^\| ([A-Z]\d\d) \| .* \| (.*) \|$", (ROOT / "docs/cases.md").read_text(), re.MULTILINE
    )
)


def test_the_page_names_the_tests_of_today() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "list_cases.py", "--check"], check=False, timeout=60
    )
    assert done.returncode == 0, "run `python tools/list_cases.py`"


def test_every_row_has_a_test() -> None:
    assert len(ROWS) == 85
    assert [row for row, tests in ROWS.items() if "test_" not in tests] == []


def test_every_id_in_a_test_s_name_is_a_row() -> None:
    names = re.compile(r"def test_((?:[A-Z]\d\d_)+)")
    found = {
        row
        for file in (ROOT / "tests").rglob("*.py")
        for rows in names.findall(file.read_text())
        for row in rows.strip("_").split("_")
    }
    assert found - ROWS.keys() == set()
