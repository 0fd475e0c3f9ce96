"""Draws a record: how far each figure is from its target, rates by chunk size, lookups.

Imports matplotlib.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "kvferry"
from matplotlib import pyplot as plt  # noqa: E402 - after the choice of backend
from matplotlib.figure import Figure  # noqa: E402

from .targets import CHUNK_SIZES  # noqa: E402

_COLOURS = {"MET": "#1a7f37", "MISSED": "#b42318", "INCONCLUSIVE": "#9a6700"}
_OTHERS = {"obj": "in-process obj tier", "direct": "NIXL direct", "client": "boto3 or obstore"}
_TICKS = (0.25, 0.5, 1, 2, 4, 8)
_LOOKUP_MS = (1, 300_000)
"""Down to what the daemon knows, and up to where the legend has room."""
_SERIES = ("#0550ae", "#953800", "#6639ba")


def draw(run: dict[str, Any], folder: Path) -> None:
    """Write each plot as SVG and PNG."""
    plots = {
        "targets": _targets(run["rows"]),
        "transfers": _transfers({row["name"]: row for row in run["rows"]}),
        "lookups": _lookups({row["name"]: row for row in (*run["rows"], *run["shown"])}),
        "first-token": _first_tokens({row["name"]: row for row in run["shown"]}),
    }
    for name, figure in plots.items():
        for kind in ("svg", "png"):
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(
                folder / f"{name}.{kind}", dpi=110, metadata=metadata, bbox_inches="tight"
            )
        plt.close(figure)


def _targets(rows: list[dict[str, Any]]) -> Figure:
    """How many times better than the bound each figure is; the bar is its interval."""
    figure, axis = plt.subplots(figsize=(11, 0.27 * len(rows) + 1.2))
    for place, row in enumerate(reversed(rows)):
        low, middle, high = (_times_better(row, row[name]) for name in ("low", "median", "high"))
        colour = _COLOURS[row["verdict"]]
        axis.plot([low, high], [place, place], color=colour, linewidth=2.5)
        axis.plot([middle], [place], "o", color=colour, markersize=4)
    axis.axvline(1, color="0.3", linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axis.minorticks_off()
    axis.set_yticks(range(len(rows)))
    axis.set_yticklabels([_label(row) for row in reversed(rows)], fontsize=7)
    axis.set_ylim(-1, len(rows))
    axis.set_xlabel("times better than the target (right of the line: met)")
    axis.grid(axis="x", alpha=0.3)
    for verdict, colour in _COLOURS.items():
        axis.plot([], [], color=colour, linewidth=2.5, label=verdict)
    axis.legend(loc="upper right", fontsize=7)
    figure.tight_layout()
    return figure


def _times_better(row: dict[str, Any], value: float) -> float:
    value = max(value, 1e-9)
    return float(row["bound"] / value if row["relation"] == "at most" else value / row["bound"])


def _label(row: dict[str, Any]) -> str:
    return f"{row['what']} / {row['against']}" if row["against"] else str(row["what"])


def _transfers(rows: dict[str, dict[str, Any]]) -> Figure:
    """Ratio of MB/s to each opponent, by chunk size."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, verb in zip(axes, ("store", "load"), strict=True):
        for colour, (group, label) in zip(_SERIES, _OTHERS.items(), strict=True):
            found = [(size, rows.get(f"{group}-{verb}-{size}")) for size in CHUNK_SIZES]
            known = [(size, row) for size, row in found if row]
            sizes = [size for size, _ in known]
            middles = [row["median"] for _, row in known]
            below = [row["median"] - row["low"] for _, row in known]
            above = [row["high"] - row["median"] for _, row in known]
            axis.errorbar(
                sizes, middles, (below, above), label=f"{label}", color=colour, marker="o",
                markersize=4, capsize=3,
            )  # fmt: skip
        axis.axhline(1, color="0.3", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(CHUNK_SIZES))
        axis.set_xticklabels(CHUNK_SIZES.values())
        axis.set_title(f"{verb}: MB/s of kvferry by MB/s of ...")
        axis.set_xlabel("chunk")
        axis.grid(alpha=0.3)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("ratio, 95 % interval")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def _lookups(rows: dict[str, dict[str, Any]]) -> Figure:
    """Milliseconds of a 512-key lookup, by the store's latency."""
    places = {"0ms-": 0, "5ms-": 5, "": 20, "50ms-": 50}
    known = {prefix: at for prefix, at in places.items() if f"{prefix}known" in rows}
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    lines = {
        "absent": (("ours", "absent-default", "kvferry", _SERIES[0]),),
        "present": (
            ("ours", "present-default", "kvferry, none known", _SERIES[0]),
            ("ours", "known", "kvferry, known", "#1a7f37"),
        ),
    }
    for axis, (case, ours) in zip(axes, lines.items(), strict=True):
        theirs = (
            ("theirs", f"{case}-default", "obj tier, 4 threads", _SERIES[1]),
            ("theirs", f"{case}-best", "obj tier, 25 threads", _SERIES[2]),
        )
        for side, name, label, colour in (*ours, *theirs):
            values = [rows[f"{prefix}{name}"][side] for prefix in known]
            style = "o-" if side == "ours" else "o--"
            axis.plot(list(known.values()), values, style, color=colour, label=label, markersize=4)
        axis.set_yscale("log")
        axis.set_ylim(*_LOOKUP_MS)
        axis.set_title(f"512 keys, all {case}")
        axis.set_xlabel("latency of the store, ms")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper left")
    axes[0].set_ylabel("ms until the prefix is known")
    figure.tight_layout()
    return figure


def _first_tokens(rows: dict[str, dict[str, Any]]) -> Figure:
    """Loading a prompt's KV beside computing it."""
    found = sorted(
        (int(name.removeprefix("hit-")), row)
        for name, row in rows.items()
        if name.startswith("hit-")
    )
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for side, label in (("ours", "loaded from the store"), ("theirs", "computed")):
        axis.plot(
            [length for length, _ in found],
            [row[side] for _, row in found],
            marker="o",
            label=label,
        )
    top = max((row[side] for _, row in found for side in ("ours", "theirs")), default=1)
    axis.set_ylim(0, 1.1 * math.ceil(top))
    axis.set_xlabel("prompt, tokens")
    axis.set_ylabel("ms to the first token")
    axis.set_title("A tiny model on one core: a hit and computing anew")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    return figure
