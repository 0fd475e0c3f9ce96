"""The figures of docs/cost.md are what its arithmetic gives."""

from __future__ import annotations

import math
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cost.md").read_text()
TOKENS = 1_000_000
USD_PER_PUT = 0.005 / 1000


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose first column has this title."""
    lines = PAGE.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_space_and_requests_of_a_million_tokens():
    shapes = [(32, 8, 128, 2), (32, 8, 128, 1), (80, 8, 128, 2)]
    for (layers, heads, head, width), row in zip(shapes, rows("model"), strict=True):
        per_token = 2 * layers * heads * head * width
        chunk = 256 * per_token
        assert row[1:] == [
            f"{per_token // 1024} KiB",
            f"{chunk // 2**20} MiB",
            f"{TOKENS * per_token / 2**30:.0f} GiB",
            f"{math.ceil(TOKENS / 256):,}",
        ]


def test_requests_per_token():
    for row in rows("`blocks_per_chunk`"):
        tokens = int(row[0]) * 16
        assert row[1:] == [
            str(tokens),
            f"{1 / tokens + 1e-9:.5f}",
            f"{TOKENS / tokens * USD_PER_PUT:.4f}",
        ]


def test_the_sums_in_the_text():
    month = 50 * 86_400 * 365 / 12
    assert f"{month:,.0f} PUTs, {month * USD_PER_PUT:.2f} USD" in re.sub(r"\s+", " ", PAGE)
    space = TOKENS * 2 * 32 * 8 * 128 * 2 / 1e9 * 0.023
    assert f"{space:.2f} USD a month" in PAGE
    assert f"{10_000 * 128 / 1024 / 1024:.1f} GiB of KV a second" in PAGE
