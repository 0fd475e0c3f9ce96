"""What a soak must show, its page and its plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
RECORD, DOCUMENT, PLOT = (EVIDENCE / f"soak.{kind}" for kind in ("json", "md", "svg"))
ALLOWED_GROWTH = {"mebibytes": 16.0, "descriptors": 12.0, "threads": 4.0}
PREFLIGHT_HANDLES = 1
"""From the second quarter of the last daemon's (engine's) life to the last one, by medians."""
UNITS = {"mebibytes": "anonymous memory, MiB", "descriptors": "descriptors", "threads": "threads"}
NEVER = ("DENIED", "INTERNAL", "WRONG_SIZE")
"""Outcomes that no fault of the soak explains."""
OUTCOMES = {
    "CANCELLED": "queued when the engine drained or the daemon stopped",
    "CORRUPT": "a load of an object that a fault had damaged",
    "EXPIRED": "queued longer than `transfer_seconds`",
    "LOADED": "",
    "LOST": "the daemon was killed or restarted with the job open",
    "MISSING": "a load of a key not stored yet, or whose object a fault had deleted",
    "NOT_SENT": "no daemon was there",
    "SHED": "the write breaker was open, or the store not ready",
    "SKIPPED_IN_FLIGHT": "",
    "SKIPPED_PRESENT": "",
    "STORED": "",
    "UNAVAILABLE": "network or server failed",
}


def judge(record: dict[str, Any]) -> list[str]:
    """What is wrong; empty if nothing is."""
    counts, outcomes = record["counts"], record["outcomes"]
    problems = [
        f"{counts[name]} {name}"
        for name in ("wrong_loads", "wrong_slots", "wrong_lookups", "reported_twice")
        if counts[name]
    ]
    if counts["reported_unknown"]:
        problems.append(f"{counts['reported_unknown']} results of unknown jobs")
    if record["wrong_objects"]:
        problems.append(f"{record['wrong_objects']} objects with wrong bytes")
    problems += [f"{count} chunks ended {name}" for name in NEVER if (count := outcomes.get(name))]
    if unexplained := unexplained_corrupt(record):
        problems.append(f"{unexplained} loads of undamaged objects ended CORRUPT")
    problems += [f"never injected: {name}" for name, count in record["faults"].items() if not count]
    problems += [
        f"no network fault: {name}" for name, count in record["network"].items() if not count
    ]
    if record["active_chunks_at_end"]:
        problems.append(f"{record['active_chunks_at_end']} transfers never ended")
    if record["nixl_handles_at_end"] != 0:
        problems.append(f"{record['nixl_handles_at_end']} NIXL handles at the end")
    if most_handles(record) > record["max_active_chunks"] + PREFLIGHT_HANDLES:
        problems.append(f"{most_handles(record)} NIXL handles at once")
    for who, what, first, last in growth(record):
        if last - first > ALLOWED_GROWTH[what]:
            problems.append(f"{what} of {who} grew from {first:g} to {last:g}")
    return problems


def unexplained_corrupt(record: dict[str, Any]) -> int:
    """Loads that ended CORRUPT although no fault had damaged their object."""
    explained: int = record["corrupt"]["of_damaged_objects"]
    total: int = record["outcomes"].get("CORRUPT", 0)
    return total - explained


def most_handles(record: dict[str, Any]) -> int:
    """NIXL's transfer handles in the sample that has most of them."""
    return max(sample["nixl_handles"] or 0 for sample in record["samples"])


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
    counts, corrupt = record["counts"], record["corrupt"]
    faults = ", ".join(f"{name} {count}" for name, count in record["faults"].items())
    wrong = counts["wrong_loads"] + counts["wrong_slots"]
    outcomes = "\n".join(
        f"| {name} | {count:,} | {OUTCOMES[name]} |" for name, count in record["outcomes"].items()
    )
    rows = "\n".join(
        f"| {who} | {UNITS[what]} | {early:g} | {late:g} |"
        for who, what, early, late in growth(record)
    )
    problems = "; ".join(record.get("problems", [])) or "nothing wrong, nothing grows"
    return f"""\
# Soak

<!-- Made by `make soak`. -->

The last record is of {record["minutes"]:g} minutes with seed {record["seed"]}, finished
{record["finished"]}: three engines' mixed traffic over {record["server"]} behind a network that
fails. Faults come in rounds, each kind once a round, in an order that the seed decides. In the
first {record["warm_minutes"]:g} minutes daemon and engines are killed too ({record["daemons"]}
daemons in all); from then on the same processes have to last. The daemon has its default settings
for integrity: a load is verified where the checksum is known, which survives in the catalog's file.
Only objects that the present daemon stored are damaged; of others it may know the length alone.

* Faults: {faults}.
* Jobs: {counts["submitted"]:,} submitted, {counts["reported"]:,} reported,
  {counts["reported_twice"]} twice, {counts["reported_unknown"]} out of the blue. What an engine had
  open when it was killed is never reported. Lookups: {counts["lookups"]:,}.
* Wrong bytes: {wrong} in slots, {record["wrong_objects"]} in {record["objects"]:,} objects
  that were read past the daemon.
* CORRUPT: {corrupt["loads"]:,} loads, {corrupt["of_damaged_objects"]:,} of them of the
  {corrupt["damaged_objects"]} objects that a fault had damaged before; unexplained:
  {unexplained_corrupt(record)}. {corrupt["damaged_objects_found"]} of the damaged objects were
  loaded before they were stored anew or deleted.
* NIXL's transfer handles (`kvferry_nixl_handles`): at most {most_handles(record)} in a sample,
  with at most {record["max_active_chunks"]} chunks in transfer; at the end
  {record["nixl_handles_at_end"]}.
* Verdict: {problems}.

| outcome | chunks | why |
|---|---|---|
{outcomes}

Medians in the second and in the last quarter of the lives of the processes that were alive at the
end:

| process | what | early | late |
|---|---|---|---|
{rows}

![Memory, descriptors, threads and NIXL handles over time](soak.svg)
"""


def plot(record: dict[str, Any], path: Path) -> None:
    """Draw memory, descriptors and threads of the daemon and the engines, and the handles."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "kvferry"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(4, 1, figsize=(9, 10), sharex=True)
    for axis, (what, unit) in zip(axes, UNITS.items(), strict=False):
        for who in ("daemon", "engine 1", "engine 2", "engine 3"):
            times, values = _curve(record, who, what)
            axis.plot(times, values, label=who, linewidth=1.2)
        axis.set_ylabel(unit)
    handles = [sample for sample in record["samples"] if sample["nixl_handles"] is not None]
    axes[-1].plot(
        [sample["seconds"] / 60 for sample in handles],
        [sample["nixl_handles"] for sample in handles],
        linewidth=0.8,
    )
    axes[-1].set_ylabel("NIXL handles")
    for axis in axes:
        axis.axvspan(0, record["warm_minutes"], color="0.92")
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
