"""Every command and sample configuration in the documentation is one that works.

Lines for programs of this repository are parsed by their own parsers; those for other programs as
far as shell words, and each path of this repository that they name has to exist. They are executed
in tests/walk.
"""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest
import yaml

from kvferry_client import tier_config
from kvferry_server.adapters.metric_families import FAMILIES
from kvferry_server.cli import config
from kvferry_server.cli.main import build_parser
from tests.walk.pages import PAGES, ROOT, Block, blocks, commands, lines

RUN_WHOLE = "grpcurl.md"
"""One script, with words over several lines: tests/repo/test_grpcurl.py."""
OF_OTHERS = {
    *(
        "aws",
        "buf",
        "cd",
        "curl",
        "docker",
        "echo",
        "export",
        "grpcurl",
        "install",
        "journalctl",
        "kubectl",
    ),
    *(
        "mkdir",
        "npm",
        "pip",
        "python3",
        "stat",
        "systemctl",
        "systemd-run",
        "useradd",
        "usermod",
        "vllm",
    ),
}
PARSERS = {"toml", "yaml", "json", "ini", "bash", "console", "promql", "python"}
NOT_PARSED = {"", "mermaid", "text", "proto", "diff", "dockerfile"}
FOLDERS = ("deploy/", "docs/", "tests/", "tools/", "requirements/", "proto/")


SHOWN = [
    pytest.param(block.page, line, id=f"{block.page.stem}: {line[:60]}")
    for block in blocks("bash", "console")
    for line in lines(block)
    if block.page.name != RUN_WHOLE
]


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert {block.language for block in blocks()} <= PARSERS | NOT_PARSED


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_every_command_is_one(page: Path, line: str) -> None:
    for words in commands(line):
        check_command(page, words)


def check_command(page: Path, words: list[str]) -> None:
    program = Path(words[0]).name
    if program == "kvferry":
        arguments = [each for each in words[1:] if each not in ("<", ">", "2>")]
        build_parser().parse_args(arguments)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [each for each in words[1:] if "=" not in each and each not in targets] == []
    elif program in ("python", "pytest", "uv", "run"):
        pass
    else:
        assert program in OF_OTHERS, f"{page.name}: teach this test {program}"
    check_inner_command(words)
    for word in words:
        path = word.split("=")[-1].split(":")[0]
        if path.startswith(FOLDERS):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
    if "--kv-transfer-config" in words:
        check_tier(words[words.index("--kv-transfer-config") + 1])


def check_inner_command(words: list[str]) -> None:
    """What runs in a container, behind `docker exec` or `kubectl exec ... --`."""
    if "exec" in words and "kvferry" in words[words.index("exec") :]:
        inner = words[len(words) - 1 - words[::-1].index("kvferry") + 1 :]
        assert build_parser().parse_args(inner)


def check_tier(text: str) -> None:
    (tier,) = json.loads(text)["kv_connector_extra_config"]["secondary_tiers"]
    if tier.pop("type") == "kvferry":
        assert tier_config.parse(tier)[1] == []


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_every_configuration_loads(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(block.text.replace('group = "kvferry"', 'group = "root"'))
    assert config.load({"--config": str(file)}, {}, uid=0).warnings == ()


@pytest.mark.parametrize("block", blocks("yaml", "json", "ini"), ids=str)
def test_every_sample_parses(block: Block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    elif block.language == "json":
        assert json.loads(block.text)
    else:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string("[file]\n" + block.text)
        assert parser["file"]


@pytest.mark.parametrize("block", blocks("promql"), ids=str)
def test_every_query_asks_for_metrics_that_exist(block: Block) -> None:
    names = {family.full_name for family in FAMILIES}
    asked = {
        re.sub(r"_(bucket|sum|count)$", "", name) if name not in names else name
        for name in re.findall(r"\bkvferry_\w+", block.text)
    }
    assert asked
    assert asked <= names


def test_options_that_pages_name_exist() -> None:
    reference = (ROOT / "docs" / "configuration.md").read_text()
    known = set()
    for section, text in re.findall(
        r"^## `\[(\w+)\]`\n(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL
    ):
        known |= {
            f"{section}.{name}" for name in re.findall(r"^\* \*\*`(\w+)`\*\*", text, re.MULTILINE)
        }
    assert len(known) > 20
    sections = "|".join(sorted({name.split(".")[0] for name in known}))
    unknown = {
        f"{page.name}: {name}"
        for page in PAGES
        for name in re.findall(rf"`((?:{sections})\.\w+)\b[^`]*`", page.read_text())
        if name not in known
    }
    assert {each for each in unknown if not each.endswith((".sock", ".toml", ".py"))} == set()
