"""The contract's tooling: stubs that import everywhere, and a check that catches a break."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUF = ROOT / "tools" / "buf" / "node_modules" / ".bin" / "buf"
BASELINE = ROOT / "proto" / "baseline.binpb"

needs_buf = pytest.mark.skipif(not BUF.exists(), reason="no buf; `make buf` installs it")


def breaking(folder: Path) -> list[str]:
    """The rules that buf finds broken in a copy of proto/."""
    done = subprocess.run(
        [BUF, "breaking", "--against", BASELINE, "--error-format=json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return [json.loads(line)["type"] for line in done.stdout.splitlines()]


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


@needs_buf
@pytest.mark.parametrize(
    ("file", "before", "after", "rule"),
    [
        ("offload", "uint64 ack_seq = 2", "uint64 ack_seq = 12", "FIELD_NO_DELETE"),
        ("offload", "uint64 ack_seq = 2", "uint64 acked = 2", "FIELD_SAME_NAME"),
        ("types", "sint32 priority = 2", "string priority = 2", "FIELD_SAME_TYPE"),
        ("types", "CHUNK_OUTCOME_SHED = 8", "CHUNK_OUTCOME_SHED = 18", "ENUM_VALUE_NO_DELETE"),
        ("offload", "rpc Drain(", "rpc Drains(", "RPC_NO_DELETE"),
    ],
)
def test_breaking_change_is_caught(
    contract: Path, file: str, before: str, after: str, rule: str
) -> None:
    path = contract / "proto" / "kvferry" / "v1" / f"{file}.proto"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    assert rule in breaking(contract)


@needs_buf
def test_addition_is_no_breaking_change(contract: Path) -> None:
    path = contract / "proto" / "kvferry" / "v1" / "types.proto"
    path.write_text(
        path.read_text().replace(
            "sint32 priority = 2;", "sint32 priority = 2;\n  // New.\n  uint32 added = 99;"
        )
    )
    assert breaking(contract) == []
