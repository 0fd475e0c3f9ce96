"""The documentation is true: links lead somewhere, figures and diagrams are fresh."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.v1 import admin_pb2, offload_pb2, types_pb2
from kvferry_server.core import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def broken_links(page: Path) -> list[str]:
    found = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_leads_to_every_page() -> None:
    start = ROOT / "docs" / "README.md"
    seen, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_file() and file not in seen:
                seen.add(file)
                waiting.append(file)
    committed = subprocess.run(
        ["git", "ls-files", "docs/*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {ROOT / name for name in committed if (ROOT / name).is_file()} - seen == set()


def test_state_diagram_is_drawn_from_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "draw_states.py", "--check"], check=False, timeout=60
    )
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["ChunkOutcome", "Presence", "JobAdmission"])
def test_protocol_page_explains_every_enum_value(name: str) -> None:
    values = getattr(types_pb2, name, None) or getattr(offload_pb2, name)
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() + "_"
    page = (ROOT / "docs" / "protocol.md").read_text()
    explained = re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)
    missing = [
        value
        for value in values.keys()  # noqa: SIM118 -- an enum wrapper is no mapping
        if not value.endswith("_UNSPECIFIED") and value.removeprefix(prefix) not in explained
    ]
    assert missing == []


def test_protocol_page_names_every_error() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    classes = [kind.__name__ for kind in errors.KvferryError.__subclasses__()]
    assert [name for name in classes if f"`{name}`" not in page] == []


def test_protocol_page_names_every_rpc() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    services = [
        offload_pb2.DESCRIPTOR.services_by_name["OffloadService"],
        admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
    ]
    methods = [method.name for service in services for method in service.methods]
    assert [name for name in methods if f"`{name}`" not in page] == []


def wire_reasons() -> set[str]:
    """The reasons of all errors that a peer may get, as the code spells them."""
    server = ROOT / "server" / "kvferry_server"
    files = [*server.glob("core/*.py"), *server.glob("service/*.py"), server / "adapters/shm.py"]
    return {
        keyword.value.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "ConfigError" not in ast.unparse(node.func)
        for keyword in node.keywords
        if keyword.arg == "reason"
        and isinstance(keyword.value, ast.Constant)
        and re.fullmatch(r"[A-Z_]+", str(keyword.value.value))
    }


def test_protocol_page_lists_every_reason() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    listed = set(re.findall(r"^\| `([A-Z_]+)` \| `[A-Z_]+` \|", page, re.MULTILINE))
    never_on_the_wire = {"SOCKET_DIR_IN_USE", "SHUTDOWN_TIMEOUT"}
    assert wire_reasons() - never_on_the_wire == listed
