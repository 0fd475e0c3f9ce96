"""docs/vllm.md says what the code does: options, sizes, log lines, metrics, topologies.

Its commands and samples are parsed by test_commands, its links followed by test_docs.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

import kvferry_server
from kvferry_client import tier_config, tier_metrics, vllm_plugin
from kvferry_client.tier_config import TierConfig
from kvferry_server.core.types import EngineSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "vllm.md").read_text()
CLIENT = "".join(
    path.read_text() for path in sorted((ROOT / "client" / "kvferry_client").glob("*.py"))
)
STATUSES = {"*tested*", "*expected*", "*refused*", "*unsafe*"}
ASKED = (
    *("tensor parallel", "pipeline parallel", "data parallel", "several machines", "MLA", "LoRA"),
    *("hybrid", "sliding window", "fp8", "canonical_layout", "one engine, one worker"),
)


def section(title: str) -> str:
    """The text below a heading."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables in a text, heads left out."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rules = [number for number, cells in enumerate(found) if set("".join(cells)) <= set("-")]
    heads = {number - 1 for number in rules}
    return [cells for number, cells in enumerate(found) if number not in heads | set(rules)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_option_is_listed_with_its_default() -> None:
    listed = {name.strip("`"): default for name, default, _ in rows(section("Serve"))}
    defaults = {
        field.name: {"": "empty", "False": "false"}.get(str(field.default), str(field.default))
        for field in dataclasses.fields(TierConfig)
    }
    assert {name: text.strip('`"') for name, text in listed.items()} == defaults


def test_the_dockerfile_is_the_shipped_ones_core() -> None:
    base, copy, install = blocks("dockerfile")[0].splitlines()
    shipped = (ROOT / "deploy" / "compose" / "vllm.Dockerfile").read_text()
    assert f"ARG VLLM={base.removeprefix('FROM ')}" in shipped
    assert copy in shipped
    assert install in shipped
    assert f"kvferry-{kvferry_server.__version__}-py3" in copy


def test_the_plugin_has_the_name_and_module_of_the_page() -> None:
    assert "`VLLM_PLUGINS`), name `kvferry`" in PAGE.replace("\n", " ")
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'"vllm.general_plugins"\]\nkvferry = ', project)
    assert vllm_plugin.__name__.rpartition(".")[0] == "kvferry_client"
    assert '"module_path": "kvferry_client.vllm_tier"' in PAGE


@pytest.mark.parametrize("row", rows(section("Sizes")), ids=lambda row: row[0])
def test_sizes_are_what_the_formula_gives(row: list[str]) -> None:
    layers, heads, size, value, token_kib, blocks_per_chunk, tokens, chunk_mib, slots, fit = (
        int(cell.replace(",", "")) for cell in row[1:]
    )
    token_bytes = 2 * layers * heads * size * value
    assert token_bytes == token_kib << 10
    assert tokens == 16 * blocks_per_chunk
    assert tokens * token_bytes == chunk_mib << 20
    assert slots == (8 << 30) // (chunk_mib << 20)
    assert fit == slots * tokens


def test_the_worked_examples_are_right() -> None:
    token = 128 << 10
    assert 16 * 8192 * token == 16 << 30
    assert "16 x 8,192 x 128 KiB = 16 GiB" in PAGE
    assert 8192 * token == 1 << 30
    assert "8,192 tokens of Llama-3.1-8B are 1 GiB; at 1 GB/s that is 1.1 s" in PAGE


def test_every_log_line_is_one_of_the_clients() -> None:
    shown = [line.strip("`") for line, _ in rows(section("Does it work\\?")) if ":" not in line]
    assert len(shown) == 7
    assert [line for line in shown if line not in CLIENT] == []
    (attached,) = blocks("text")
    (template,) = re.findall(r'"(attached %d slots[^"]+)"', CLIENT)
    pattern = re.escape(template).replace("%d", r"\d+").replace("%s", "[^ ,)]+")
    assert re.fullmatch(pattern, attached.strip())


def test_every_metric_exists() -> None:
    others = (tier_metrics.ATTACHED, tier_metrics.LOOKUP_SECONDS)
    known = {tier_metrics.PREFIX + name for name in (*tier_metrics.COUNTERS, *others)}
    named = set(re.findall(rf"{tier_metrics.PREFIX}\w+", PAGE))
    assert named
    assert named <= known


def test_the_old_tiers_sample_is_refused_with_a_hint_and_the_new_ones_taken() -> None:
    pressed, old = blocks("json")
    options = json.loads(pressed)
    assert options.pop("type") == "kvferry"
    assert options.pop("backpressure")  # vLLM takes it out before the tier sees its options.
    assert tier_config.parse(options)[1] == []
    options = json.loads(old)
    options.pop("type")
    with pytest.raises(ValueError, match=r"store_config.*move it to the daemon"):
        tier_config.parse(options)
    (new,) = re.findall(
        r"`(\{\"type\": \"kvferry\"[^`]+)`", section("From the in-process `obj` tier")
    )
    options = json.loads(new)
    assert options.pop("type") == "kvferry"
    assert tier_config.parse(options)[1] == []


def test_the_stalls_are_those_of_the_settings_and_the_manifest() -> None:
    stalls = section("The longest stalls")
    assert f"`hard_deadline_seconds`, {EngineSettings().hard_deadline_seconds:.0f} s" in stalls
    assert f"`lookup_timeout_s`, {TierConfig().lookup_timeout_s:.0f} s" in stalls
    assert "SHUTDOWN_SECONDS: Final = 2.0" in CLIENT
    assert "DRAIN_LOG_SECONDS: Final = 5.0" in CLIENT
    manifest = (ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml").read_text()
    pod = yaml.safe_load(manifest)["spec"]["template"]["spec"]
    (daemon,) = (each for each in pod["initContainers"] if each["name"] == "kvferry")
    probe = daemon["livenessProbe"]
    assert 45 <= probe["periodSeconds"] * probe["failureThreshold"] <= 75


def test_every_topology_that_was_asked_for_has_a_status() -> None:
    table = rows(section("Topologies"))
    assert {status for _, status, _ in table} <= STATUSES
    names = " ".join(name for name, _, _ in table)
    assert [each for each in ASKED if each not in names] == []


def test_every_tested_topology_links_its_test() -> None:
    tested = [row for row in rows(section("Topologies")) if row[1] == "*tested*"]
    assert tested
    assert [name for name, _, why in tested if "](../tests/" not in why] == []


def test_every_test_it_names_exists() -> None:
    for path, name in re.findall(r"\]\(\.\./(tests/[^)]+)\)\s+\(`(test_\w+)`\)", PAGE):
        assert f"def {name}(" in (ROOT / path).read_text()
