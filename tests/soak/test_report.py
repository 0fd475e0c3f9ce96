"""The soak's judgement: what it calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from .faults import KINDS, LIVES, OTHERS, Order
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
                "nixl_handles": number % 17,
            }
        )
    counts = dict.fromkeys(
        ("reported_twice", "reported_unknown", "wrong_loads", "wrong_slots", "wrong_lookups"), 0
    )
    return {
        "minutes": 3.0,
        "finished": "today",
        "server": "none",
        "seed": 1,
        "warm_minutes": 0.7,
        "faults": {"network cut": 1},
        "network": {"reset": 1},
        "corrupt": {
            "loads": 3,
            "of_damaged_objects": 3,
            "damaged_objects_found": 1,
            "damaged_objects": 2,
        },
        "daemons": 1,
        "counts": counts | {"submitted": 10, "reported": 10, "lookups": 1},
        "outcomes": {"STORED": 10, "CORRUPT": 3},
        "objects": 10,
        "wrong_objects": 0,
        "active_chunks_at_end": 0,
        "nixl_handles_at_end": 0,
        "max_active_chunks": 16,
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


@pytest.mark.parametrize(
    "change",
    [
        {"wrong_objects": 2},
        {"active_chunks_at_end": 2},
        {"nixl_handles_at_end": 2},
        {"nixl_handles_at_end": None},
        {"max_active_chunks": 8},
        {"outcomes": {"CORRUPT": 4}},
        {"outcomes": {"CORRUPT": 3, "INTERNAL": 1}},
        {"faults": {"network cut": 1, "server killed": 0}},
        {"network": {"reset": 0}},
    ],
)
def test_every_other_fault_is_noticed(change: dict[str, Any]):
    assert len(judge(record() | change)) == 1


def test_every_kind_comes_once_a_round_in_an_order_that_the_seed_decides():
    order, again, other = Order(1), Order(1), Order(2)
    first = [order.next(lives_at_risk=True) for _ in KINDS]
    assert sorted(first) == sorted(KINDS)
    assert first == [again.next(lives_at_risk=True) for _ in KINDS]
    assert first != [other.next(lives_at_risk=True) for _ in KINDS]
    assert order.all_lives_done
    rest = [order.next(lives_at_risk=False) for _ in OTHERS]
    assert sorted(rest) == sorted(OTHERS)


def test_no_life_is_at_risk_any_more_in_the_middle_of_a_round():
    order = Order(3)
    order.next(lives_at_risk=True)
    assert not {order.next(lives_at_risk=False) for _ in range(40)} & set(LIVES)
