"""What a soak must show, its page and its plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
RECORD, DOCUMENT, PLOT = (EVIDENCE / f"soak.{kind}" for kind in ("json", "md", "svg"))
ALLOWED_GROWTH = {"mebibytes": 16.0, "descriptors": 12.0, "threads": 4.0}
"""From the second quarter of the last daemon's (engine's) life to the last one, by medians."""
UNITS = {"mebibytes": "anonymous memory, MiB", "descriptors": "descriptors", "threads": "threads"}


def judge(record: dict[str, Any]) -> list[str]:
    """What is wrong; empty if nothing is."""
    counts = record["counts"]
    problems = [
        f"{counts[name]} {name}"
        for name in ("wrong_loads", "wrong_slots", "wrong_lookups", "reported_twice")
        if counts[name]
    ]
    if counts["reported_unknown"]:
        problems.append(f"{counts['reported_unknown']} results of unknown jobs")
    if record["wrong_objects"]:
        problems.append(f"{record['wrong_objects']} objects with wrong bytes")
    if record["active_chunks_at_end"]:
        problems.append(f"{record['active_chunks_at_end']} transfers never ended")
    for who, what, first, last in growth(record):
        if last - first > ALLOWED_GROWTH[what]:
            problems.append(f"{what} of {who} grew from {first:g} to {last:g}")
    return problems


def growth(record: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Medians early and late in the lives of the last processes: who, what, early, late."""
    rows = []
    for who, series in processes(record).items():
        for what in UNITS:
            values = [point[what] for _, point in series]
            quarter = len(values) // 4
            if quarter:
                early = statistics.median(values[quarter : 2 * quarter])
                late = statistics.median(values[-quarter:])
                rows.append((who, what, early, late))
    return rows


def processes(record: dict[str, Any]) -> dict[str, list[tuple[float, dict[str, float]]]]:
    """Samples of the processes that were alive at the end."""
    last = record["samples"][-1]
    series: dict[str, list[tuple[float, dict[str, float]]]] = {"daemon": []}
    for sample in record["samples"]:
        if sample["daemon_pid"] == last["daemon_pid"] and sample["daemon"]:
            series["daemon"].append((sample["seconds"], sample["daemon"]))
        for pid, point in zip(sample["engine_pids"], sample["engines"], strict=True):
            if pid in last["engine_pids"] and point:
                name = f"engine {last['engine_pids'].index(pid) + 1}"
                series.setdefault(name, []).append((sample["seconds"], point))
    return series


def document(record: dict[str, Any]) -> str:
    """The page's text."""
    counts = record["counts"]
    faults = ", ".join(f"{count} {name}" for name, count in record["faults"].items())
    outcomes = ", ".join(f"{count:,} {name}" for name, count in record["outcomes"].items())
    wrong = counts["wrong_loads"] + counts["wrong_slots"]
    rows = "\n".join(
        f"| {who} | {UNITS[what]} | {early:g} | {late:g} |"
        for who, what, early, late in growth(record)
    )
    problems = "; ".join(record.get("problems", [])) or "nothing wrong, nothing grows"
    return f"""\
# Soak

<!-- Made by `make soak`. -->

The last record is of {record["minutes"]:g} minutes, finished {record["finished"]}: three engines'
mixed traffic over {record["server"]} behind a network that fails at random. In the first
{record["warm_share"]:.0%} daemon and engines are killed too ({record["daemons"]} daemons in all);
from then on the same processes have to last. Checksums survive in the catalog's file, and what has
none is a miss (`verify = "require"`), since one of the faults damages objects behind the daemon.

* Faults: {faults}.
* Jobs: {counts["submitted"]:,} submitted, {counts["reported"]:,} reported,
  {counts["reported_twice"]} twice, {counts["reported_unknown"]} out of the blue. What an engine had
  open when it was killed is never reported. Lookups: {counts["lookups"]:,}.
* Chunks: {outcomes}.
* Wrong bytes: {wrong} in slots, {record["wrong_objects"]} in {record["objects"]:,} objects
  that were read past the daemon.
* Transfers that still run at the end, each with its NIXL handle: {record["active_chunks_at_end"]}.
* Verdict: {problems}.

Medians in the second and in the last quarter of the lives of the processes that were alive at the
end:

| process | what | early | late |
|---|---|---|---|
{rows}

![Memory, descriptors and threads over time](soak.svg)
"""


def plot(record: dict[str, Any], path: Path) -> None:
    """Draw memory, descriptors and threads of the daemon and the engines."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "kvferry"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(9, 8), sharex=True)
    for axis, (what, unit) in zip(axes, UNITS.items(), strict=True):
        for who in ("daemon", "engine 1", "engine 2", "engine 3"):
            times, values = _curve(record, who, what)
            axis.plot(times, values, label=who, linewidth=1.2)
        axis.axvspan(0, record["minutes"] * record["warm_share"], color="0.92")
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_title("Soak; grey: daemon and engines are killed too")
    axes[0].legend(loc="lower right", ncols=4, fontsize=8)
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _curve(record: dict[str, Any], who: str, what: str) -> tuple[list[float], list[float]]:
    """All samples of a place, whichever process was in it."""
    times, values = [], []
    for sample in record["samples"]:
        point = sample["daemon"]
        if who != "daemon":
            place = int(who.split()[1]) - 1
            point = sample["engines"][place] if place < len(sample["engines"]) else {}
        if point:
            times.append(sample["seconds"] / 60)
            values.append(point[what])
    return times, values
