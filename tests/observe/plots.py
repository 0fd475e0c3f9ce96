"""Draws what the dashboard's panels show, from what Prometheus answers.

Imports matplotlib (the dependency group `observe`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib import ticker

COLUMNS = 3
HEADROOM = 1.15
Series = list[dict[str, Any]]
_FORMATS = {
    "bytes": ticker.EngFormatter(unit="B"),
    "Bps": ticker.EngFormatter(unit="B/s"),
    "percentunit": ticker.PercentFormatter(1.0),
}
_WORDS = {"s": "seconds", "ops": "per second", "reqps": "requests per second", "none": ""}


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in which the store is in one state; Unix times."""

    name: str
    start: float
    end: float


def draw_row(
    panels: list[dict[str, Any]], data: list[list[Series]], phases: list[Phase], target: Path
) -> None:
    """One picture of a row's panels: `data` has the answers to each panel's queries."""
    lines = -(-len(panels) // COLUMNS)
    figure, grid = plt.subplots(
        lines, COLUMNS, figsize=(16, 4 * lines), squeeze=False, layout="constrained"
    )
    for axes, panel, answers in zip(grid.flat, panels, data, strict=True):
        _draw(axes, panel, answers, phases)
    figure.savefig(target, dpi=75, metadata={"Software": None})
    plt.close(figure)


def _draw(axes: Any, panel: dict[str, Any], answers: list[Series], phases: list[Phase]) -> None:
    began, top = phases[0].start, 0.0
    for query, series in zip(panel["targets"], answers, strict=True):
        for each in series:
            times = [at - began for at, _ in each["values"]]
            values = [float(value) for _, value in each["values"]]
            known = [value for value in values if value == value]  # noqa: PLR0124 -- not NaN
            if any(known) or len(series) <= COLUMNS:
                axes.plot(times, values, label=_legend(query["legendFormat"], each["metric"]))
                top = max(top, *known, 0.0)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit in _FORMATS:
        axes.yaxis.set_major_formatter(_FORMATS[unit])
    else:
        axes.set_ylabel(_WORDS[unit])
    axes.set_title(panel["title"], fontweight="bold")
    axes.set_xlim(0, phases[-1].end - began)
    axes.set_ylim(0, HEADROOM * top or 1)
    if not top:
        axes.set_yticks([0])
    axes.xaxis.set_major_locator(ticker.MultipleLocator(30))
    axes.xaxis.set_major_formatter(lambda at, _: f"{at // 60:.0f}:{at % 60:02.0f}")
    axes.grid(alpha=0.3)
    for number, phase in enumerate(phases, 1):
        start, end = phase.start - began, phase.end - began
        if number % 2 == 0:
            axes.axvspan(start, end, color="0.93", zorder=0)
        axes.text((start + end) / 2, 0.99, number, transform=axes.get_xaxis_transform(), **_NUMBER)
    if axes.get_lines():
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)


_NUMBER: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": "0.4"}
"""Looks of a phase's number."""


def _legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match.group(1), ""), text)
