"""Draws what the dashboard's panels show, from what Prometheus answers.

Imports matplotlib (the dependency group `observe`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import dates, ticker
from matplotlib import pyplot as plt

COLUMNS = 3
Series = list[dict[str, Any]]


def draw_row(panels: list[dict[str, Any]], data: list[list[Series]], target: Path) -> None:
    """One picture of a row's panels: `data` has the answers to each panel's queries."""
    lines = -(-len(panels) // COLUMNS)
    figure, grid = plt.subplots(
        lines, COLUMNS, figsize=(15, 3.4 * lines), squeeze=False, layout="constrained"
    )
    for axes, panel, answers in zip(grid.flat, panels, data, strict=True):
        _draw(axes, panel, answers)
    figure.savefig(target, dpi=70, metadata={"Software": None})
    plt.close(figure)


def _draw(axes: Any, panel: dict[str, Any], answers: list[Series]) -> None:
    for query, series in zip(panel["targets"], answers, strict=True):
        for each in series:
            points = [(at, float(value)) for at, value in each["values"]]
            times = [datetime.fromtimestamp(at, UTC) for at, _ in points]
            values = [value for _, value in points]
            if any(value > 0 for value in values) or len(series) <= COLUMNS:
                axes.plot(times, values, label=_legend(query["legendFormat"], each["metric"]))
    axes.set_title(panel["title"], fontsize=10)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.tick_params(labelsize=7)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit in ("bytes", "Bps"):
        axes.yaxis.set_major_formatter(ticker.EngFormatter(unit="B" if unit == "bytes" else "B/s"))
    elif unit == "percentunit":
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    else:
        axes.set_ylabel("" if unit == "none" else unit, fontsize=8)
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(fontsize=6, loc="upper left")


def _legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match.group(1), ""), text)
