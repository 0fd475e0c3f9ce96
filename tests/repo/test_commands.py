"""Every command and sample configuration in the documentation is one that works.

Lines for programs of this repository are parsed by their own parsers; those for other programs as
far as shell words, and each path of this repository that they name has to exist. Which pages' lines
are really executed is said at the bottom.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kvferry_client import tier_config
from kvferry_server.adapters.metric_families import FAMILIES
from kvferry_server.cli import config
from kvferry_server.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN_ELSEWHERE = {"grpcurl.md"}
BLOCK = re.compile(r"^```([\w-]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
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
    *("mkdir", "npm", "pip", "python3", "stat", "systemctl", "useradd", "usermod", "vllm"),
}
PARSERS = {"toml", "yaml", "json", "ini", "bash", "console", "promql", "python"}
NOT_PARSED = {"", "mermaid", "text", "proto", "diff", "dockerfile"}
FOLDERS = ("deploy/", "docs/", "tests/", "tools/", "requirements/", "proto/")


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.language}:{self.text[:30]!r}"


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, language, text)
        for page in PAGES
        for language, text in BLOCK.findall(page.read_text())
        if not languages or language in languages
    ]


def lines(block: Block) -> list[str]:
    """The commands of a block; what a console block shows of the output is left out."""
    joined = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        return [line[2:] for line in joined if line.startswith("$ ")]
    return [line for line in joined if line.strip() and not line.startswith("#")]


def commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without redirections and variables before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            found.append([])
        else:
            found[-1].append(word)
    return [cleaned for words in found if (cleaned := without_prefix(words))]


def without_prefix(words: list[str]) -> list[str]:
    while words and (re.match(r"\w+=", words[0]) or words[0] == "sudo"):
        words = words[1:]
        if words[:1] == ["-u"]:
            words = words[2:]
    return words


SHOWN = [
    pytest.param(block.page, line, id=f"{block.page.stem}: {line[:60]}")
    for block in blocks("bash", "console")
    for line in lines(block)
    if block.page.name not in RUN_ELSEWHERE
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


def test_the_quick_start_works_with_a_directory(tmp_path: Path) -> None:
    """Its commands in their order, on `file://`, by this environment's kvferry."""
    kvferry = [sys.executable, "-m", "kvferry_server.cli"]
    page = (ROOT / "docs" / "quickstart.md").read_text()
    for shown in (
        "kvferry check s3://bucket/prefix",
        "kvferry serve --store-url",
        "kvferry status",
    ):
        assert shown in page
    store, sockets = (tmp_path / "store").as_uri(), tmp_path / "run"
    subprocess.run([*kvferry, "check", store], check=True, timeout=120)
    serve = [*kvferry, "serve", "--store-url", store, "--socket-dir", str(sockets)]
    daemon = subprocess.Popen([*serve, "--http-listen", ""], stderr=subprocess.PIPE, text=True)
    try:
        assert daemon.stderr
        while "ready: " not in (line := daemon.stderr.readline()):
            assert line, "the daemon ended"
        status = [*kvferry, "status", "--socket-dir", str(sockets)]
        done = subprocess.run(status, capture_output=True, text=True, check=True, timeout=60)
        assert "store" in done.stdout
        demo = [sys.executable, "-m", "kvferry_client.demo", "--socket-dir", str(sockets)]
        subprocess.run(demo, check=True, timeout=120, capture_output=True)
    finally:
        daemon.terminate()
        _, rest = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, rest
