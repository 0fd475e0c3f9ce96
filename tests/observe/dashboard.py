"""Every query of the dashboard and every rule against a daemon under load: `make observe`.

A daemon works on an S3 look-alike that is well, then slow, damaging, refusing and failing, then
well again. Ends with 1 if a query gives no data or a rule does not evaluate, and draws each row of
the dashboard into docs/dashboard. Needs Debian's package prometheus and matplotlib.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.fault_server import BUCKET, Fault, FaultServer

from .plots import Phase, draw_row
from .prometheus import RULES
from .scene import Scene, scene

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "kvferry.json"
PICTURES = ROOT / "docs" / "dashboard"
PHASES: tuple[tuple[str, float, tuple[Fault, ...]], ...] = (
    ("well", 30, ()),
    ("slow", 20, (Fault(method="GET", delay=0.3), Fault(method="PUT", delay=0.3))),
    ("damaging", 15, (Fault(method="PUT", mangle=True),)),
    ("failing now and then", 15, (Fault(method="PUT", status=503, code="SlowDown", times=6),)),
    ("refusing", 12, (Fault(status=403, code="InvalidAccessKeyId"),)),
    ("failing", 15, (Fault(status=503, code="SlowDown"),)),
    ("well again", 30, ()),
)


def rows() -> list[list[dict[str, Any]]]:
    """The dashboard's panels by row."""
    grouped: list[list[dict[str, Any]]] = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] == "row":
            grouped.append([])
        else:
            grouped[-1].append(panel)
    return grouped


def expression(query: str) -> str:
    """As Grafana asks it when all instances are chosen."""
    return query.replace("$instance", ".*").replace("$__rate_interval", "10s")


def play(on: Scene, server: FaultServer) -> list[Phase]:
    """Let every phase pass; return when each was."""
    played = []
    for name, seconds, faults in PHASES:
        print(f"the store is {name} for {seconds:g} s", flush=True)
        began = time.time()
        server.clear()
        for fault in faults:
            server.add(fault)
        if name == "slow":
            sys_pause(on)
        time.sleep(began + seconds - time.time())
        played.append(Phase(name, began, time.time()))
    return played


def sys_pause(on: Scene) -> None:
    """Pause and resume stores, as an operator does."""
    for command in ("pause", "resume"):
        words = [sys.executable, "-m", "kvferry_server.cli", command, "stores"]
        subprocess.run([*words, "--socket-dir", str(on.sockets)], check=True)
        time.sleep(2)


def finite(series: list[dict[str, Any]]) -> int:
    """How many values are numbers."""
    return sum(value != "NaN" for each in series for _, value in each["values"])


def check_panels(on: Scene, phases: list[Phase]) -> list[str]:
    """Ask all queries and draw; return those without data."""
    empty, queries = [], 0
    began, ended = phases[0].start, phases[-1].end
    PICTURES.mkdir(exist_ok=True)
    for number, panels in enumerate(rows(), 1):
        data = [
            [
                on.prometheus.query_range(expression(each["expr"]), began, ended)
                for each in panel["targets"]
            ]
            for panel in panels
        ]
        for panel, answers in zip(panels, data, strict=True):
            for query, answer in zip(panel["targets"], answers, strict=True):
                queries += 1
                if not finite(answer):
                    empty.append(f"{panel['title']}: {query['expr']}")
        draw_row(panels, data, phases, PICTURES / f"row-{number}.png")
    print(f"{queries} dashboard queries, {len(empty)} without data")
    return empty


def check_rules(on: Scene) -> list[str]:
    """Ask each rule's own series; return those that don't evaluate or rest on nothing."""
    rules = on.prometheus.rules()
    sick = [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] != "ok"]
    names = sorted(
        {
            word
            for rule in rules
            for word in rule["query"].replace("(", " ").replace("{", " ").split()
            if word.startswith(("kvferry_", "kvferry:"))
        }
    )
    sick += [f"no series of {name.rstrip('[')}" for name in names if not series_of(on, name)]
    print(f"{len(rules)} rules evaluated, {len(names)} metrics in them, problems: {len(sick)}")
    return sick


def series_of(on: Scene, word: str) -> list[dict[str, Any]]:
    """The series that a word of an expression begins with."""
    return on.prometheus.query(word.split("[", maxsplit=1)[0])


def main() -> int:
    """Play, ask and draw."""
    subprocess.run(["promtool", "check", "rules", RULES], check=True)
    subprocess.run(["promtool", "test", "rules", RULES.with_suffix(".test.yml")], check=True)
    with FaultServer() as server, scene(BUCKET, server.environment()) as on:
        problems = check_panels(on, play(on, server)) + check_rules(on)
        wrong = sum(each.get("wrong_bytes", 0) for each in on.requests())
        requests = sum(each["requests"] for each in on.requests())
    print(f"{requests} requests of the engine's side, {wrong} wrong chunks")
    print("\n".join(problems))
    return 1 if problems or wrong or not requests else 0


if __name__ == "__main__":
    sys.exit(main())
