"""Dashboard and rules use metrics that exist, and each alert has a runbook section.

That every query gives data and every alert fires is seen in `make observe`, which has promtool run
the rules' own tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvferry_server.adapters.metric_families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "kvferry.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "kvferry.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
NAME = re.compile(r"\b(?:kvferry|process)_[a-z_]+")
SELECTOR = re.compile(r"\b(kvferry_[a-z_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"')
PROCESS = {"process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [each["expr"] for panel in panels for each in panel.get("targets", [])]


def known_names() -> set[str]:
    names = set(PROCESS)
    for family in FAMILIES:
        parts = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names |= {family.full_name + part for part in parts}
    return names


@pytest.mark.parametrize("expression", [*queries(), *(each["expr"] for each in rules())])
def test_every_metric_exists(expression: str) -> None:
    labels = {"kvferry_build_info"}
    assert set(NAME.findall(expression)) - known_names() - labels == set()


@pytest.mark.parametrize("expression", [*queries(), *(each["expr"] for each in rules())])
def test_every_label_and_value_exists(expression: str) -> None:
    families = {}
    for family in FAMILIES:
        for part in ("", "_bucket", "_sum", "_count"):
            families[family.full_name + part] = family
    for name, matchers in SELECTOR.findall(expression):
        family = families[name]
        for label, operator, text in MATCHER.findall(matchers):
            if label in ("instance", "le", "job"):
                continue
            assert label in family.labels, (name, label)
            at = family.labels.index(label)
            values = {labels[at] for labels in family.series}
            wanted = set(text.split("|")) if operator == "=~" else {text}
            assert wanted <= values, (name, label, wanted)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_has_a_section_of_the_runbook(alert: dict[str, Any]) -> None:
    link = alert["annotations"]["runbook_url"]
    assert link == f"docs/runbook.md#{alert['alert'].lower()}"
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    (section,) = (each for each in sections if each.splitlines()[0] == alert["alert"])
    for part in ("**Meaning.**", "**First look.**", "**Fix.**"):
        assert part in section
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert alert["annotations"]["summary"]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_no_alert_shows_a_number_with_fifteen_digits(alert: dict[str, Any]) -> None:
    for text in alert["annotations"].values():
        shown = re.findall(r"{{ \$value(.*?)}}", text)
        assert all(each.startswith((" | humanize", " | printf")) for each in shown), text


def test_the_runbook_has_no_section_too_many() -> None:
    titles = re.findall(r"^## (Kvferry\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(titles) == sorted(each["alert"] for each in alerts())


def test_every_panel_that_the_runbook_names_is_on_the_dashboard() -> None:
    titles = {panel["title"] for panel in json.loads(DASHBOARD.read_text())["panels"]}
    named = {" ".join(each.split()) for each in re.findall(r'"([A-Z][^"]+)"', RUNBOOK.read_text())}
    assert len(named) > 5
    assert named - titles == set()


def test_every_alert_has_a_rule_test_that_sees_it_fire() -> None:
    tests = yaml.safe_load(RULES.with_suffix(".test.yml").read_text())["tests"]
    fired = {
        test["name"]
        for test in tests
        for check in test["promql_expr_test"]
        if check["exp_samples"] and f'alertname="{test["name"]}"' in check["expr"]
    }
    assert fired == {each["alert"] for each in alerts()}


def test_the_dashboard_is_made_from_its_table() -> None:
    script = ROOT / "tools" / "make_dashboard.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
