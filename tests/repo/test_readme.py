"""The README's commands run as written, and what it claims of tests exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import kvferry_server
from kvferry_client import tier_config
from kvferry_server.cli import config
from kvferry_server.cli.main import build_parser
from kvferry_server.cli.store_url import S3Url, parse_store_url

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def commands(language: str) -> list[str]:
    """The lines of all code blocks of a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def the_line(word: str) -> str:
    (line,) = (line for line in commands("bash") if word in line)
    return line


def test_the_two_commands_are_targets_and_the_first_one_works() -> None:
    shown = [line[2:].split("#")[0].strip() for line in commands("console") if line[:2] == "$ "]
    assert shown == ["make demo", "make test"]
    planned = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert "pytest" in planned.stdout
    done = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "256 of 256 chunks are equal in every byte" in re.sub(r"\s+", " ", done.stdout)


def test_the_serve_line_is_a_whole_configuration() -> None:
    words = shlex.split(the_line("kvferry serve"))
    start = next(at for at, word in enumerate(words) if word.endswith("/kvferry"))
    environ = dict(word.split("=", 1) for word in words[:start])
    arguments = vars(build_parser().parse_args(words[start + 1 :]))
    flags = {f"--{name.replace('_', '-')}": value for name, value in arguments.items()}
    loaded = config.load(flags, environ, uid=0)
    assert parse_store_url(loaded.config.store.url) == S3Url("bucket", "prefix")
    assert loaded.config.sockets.directory == "/run/kvferry"
    assert loaded.warnings == ()


def test_the_vllm_line_configures_the_tier() -> None:
    words = shlex.split(the_line("vllm serve"))
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector"] == "OffloadingConnector"
    extra = transfer["kv_connector_extra_config"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    (tier,) = extra["secondary_tiers"]
    assert tier.pop("type") == "kvferry"
    parsed, warnings = tier_config.parse(tier)
    assert parsed.socket_dir == "/run/kvferry"
    assert warnings == []


def test_the_install_lines_are_those_of_the_installation_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert the_line("uv pip install") in page
    assert "python3 -m venv kv && kv/bin/pip install uv" in page
    assert f"kvferry-{kvferry_server.__version__}-py3-none-any.whl" in the_line("uv pip install")


def test_first_screen_keeps_its_order() -> None:
    landmarks = [
        "S3 without S3 keys in vLLM",
        "make demo",
        "make test",
        "kvferry serve",
        "vllm serve",
        "Three promises",
        "| vLLM |",
        "not tested on a GPU",
        "When not to use it",
        "How to turn it off",
        "More:",
    ]
    places = [README.index(text) for text in landmarks]
    assert places == sorted(places)


@pytest.mark.parametrize("name", re.findall(r"`(test_\w+)`", README))
def test_every_test_it_names_is_in_a_file_that_it_links(name: str) -> None:
    linked = [ROOT / path for path in re.findall(r"\]\((tests/[^)]+)\)", README)]
    assert any(f"def {name}(" in path.read_text() for path in linked)
