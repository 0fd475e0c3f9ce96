"""What the tree as a whole must and must not hold."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Written in pieces, so that this file does not match itself.
FORBIDDEN = {
    "the host of a package registry": "|".join(
        (r"pypi\." + "org", "python" + r"hosted\.org", r"registry\.npmjs\." + "org")
    ),
    "a path of the machine it was written on": r"(?<![\w.])/" + r"(?:work|tmp/w|tmp/pk)(?![\w-])",
    "an access key": r"AKIA" + r"(?!NOTTHEKEY)[0-9A-Z]{16}",
    "a private key": "-----BEGIN " + r"(?:[A-Z]+ )?PRIVATE KEY-----",
}


def tracked() -> list[Path]:
    """The files of the tree that git would commit."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split("\n")
    return [ROOT / name for name in listing if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tree_holds_no(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what].encode())
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked()
        for match in pattern.finditer(path.read_bytes())
    ]
    assert found == []


def test_python_files_stay_readable() -> None:
    limit = 450
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in tracked()
        if path.suffix == ".py" and "kvferry/v1" not in path.as_posix()
        if (lines := len(path.read_text().splitlines())) > limit
    }
    assert long == {}


def test_licence_is_apache_2() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
