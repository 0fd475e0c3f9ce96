"""The one-way rule, file by file; the layers themselves are import-linter's (make imports)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "server" / "kvferry_server"
CLIENT = ROOT / "client" / "kvferry_client"

SOLE_IMPORTERS = {
    "nixl_cu12": r"server/kvferry_server/adapters/nixl_\w+\.py",
    "nixl": r"never: the meta package may bring the CUDA 13 build",
    "boto3": r"server/kvferry_server/adapters/s3_\w+\.py",
    "botocore": r"server/kvferry_server/adapters/s3_\w+\.py",
    "prometheus_client": r"server/kvferry_server/adapters/metrics\.py",
    "vllm": r"client/kvferry_client/vllm_\w+\.py",
}
CLIENT_MAY_IMPORT = {"grpc", "google", "kvferry", "kvferry_client"}


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Full names of the absolute imports of a file, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rsplit(".", 1)[-1] in {"import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


def top(name: str) -> str:
    return name.split(".", 1)[0]


@pytest.mark.parametrize("package", SOLE_IMPORTERS)
def test_each_outside_library_has_one_importer(package: str) -> None:
    allowed = re.compile(SOLE_IMPORTERS[package])
    found = [
        path.relative_to(ROOT).as_posix()
        for path in [*sources(SERVER), *sources(CLIENT)]
        if package in map(top, imported(path))
    ]
    assert [path for path in found if not allowed.fullmatch(path)] == []


def test_core_imports_the_standard_library_only() -> None:
    found = {
        f"{path.name}: {name}"
        for path in sources(SERVER / "core")
        for name in imported(path)
        if top(name) not in sys.stdlib_module_names and not name.startswith("kvferry_server.core")
    }
    assert found == set()


@pytest.mark.parametrize(
    "module", ["asyncio", "logging", "os", "socket", "subprocess", "threading", "time"]
)
def test_core_has_no_io_clock_thread_or_logger(module: str) -> None:
    found = [p.name for p in sources(SERVER / "core") if module in map(top, imported(p))]
    assert found == []


def test_client_imports_grpc_and_protobuf_only() -> None:
    found = {
        f"{path.name}: {name}"
        for path in sources(CLIENT)
        if not path.name.startswith("vllm_")
        for name in imported(path)
        if top(name) not in sys.stdlib_module_names | CLIENT_MAY_IMPORT
        or name.startswith(("google.rpc", "google.api"))
    }
    assert found == set()


def test_importing_the_client_starts_and_loads_nothing_heavy() -> None:
    probe = (
        "import sys, threading, kvferry_client\n"
        "heavy = {'nixl_cu12', 'boto3', 'botocore', 'prometheus_client', 'vllm', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[] 1"
