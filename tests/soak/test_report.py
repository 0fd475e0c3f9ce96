"""The soak's judgement: what it calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from .report import document, judge


def record(*, growing: str = "", by: float = 0.0) -> dict[str, Any]:
    """A soak in which nothing is wrong, but perhaps something grows."""
    samples = []
    for number in range(40):
        point = {"mebibytes": 100.0, "descriptors": 50.0, "threads": 20.0}
        grown = dict(point)
        if growing:
            grown[growing] += by * number / 40
        samples.append(
            {
                "seconds": number * 5.0,
                "daemon_pid": 1,
                "daemon": grown,
                "engine_pids": [2, 3, 4],
                "engines": [point] * 3,
                "active_chunks": 0,
            }
        )
    counts = dict.fromkeys(
        ("reported_twice", "reported_unknown", "wrong_loads", "wrong_slots", "wrong_lookups"), 0
    )
    return {
        "minutes": 3.0,
        "finished": "today",
        "server": "none",
        "warm_share": 0.25,
        "faults": {"network cut": 1},
        "daemons": 1,
        "counts": counts | {"submitted": 10, "reported": 10, "lookups": 1},
        "outcomes": {"STORED": 10},
        "objects": 10,
        "wrong_objects": 0,
        "active_chunks_at_end": 0,
        "samples": samples,
    }


def test_a_flat_and_right_soak_passes():
    assert judge(record()) == []
    assert "nothing wrong, nothing grows" in document(record())


@pytest.mark.parametrize(
    ("what", "by"), [("mebibytes", 60.0), ("descriptors", 40.0), ("threads", 12.0)]
)
def test_growth_is_noticed(what: str, by: float):
    [problem] = judge(record(growing=what, by=by))
    assert problem.startswith(f"{what} of daemon grew")


@pytest.mark.parametrize(
    "what", ["wrong_loads", "wrong_slots", "wrong_lookups", "reported_twice", "reported_unknown"]
)
def test_wrong_bytes_and_results_are_noticed(what: str):
    bad = record()
    bad["counts"][what] = 1
    assert len(judge(bad)) == 1


@pytest.mark.parametrize("what", ["wrong_objects", "active_chunks_at_end"])
def test_wrong_objects_and_endless_transfers_are_noticed(what: str):
    assert len(judge(record() | {what: 2})) == 1
