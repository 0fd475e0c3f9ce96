"""The fast faults, and that the committed verdicts are those of this list, and good."""

from __future__ import annotations

import json

import pytest

from .catalogue import FaultCase, all_faults
from .judge import judge
from .report import DOCUMENT, VERDICTS, document


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.ident) for each in all_faults() if each.gate]
)
def test_fault(case: FaultCase) -> None:
    verdict = judge(case)
    assert verdict.proofs, f"not proven: {verdict.problem}"
    assert not verdict.problem, verdict.problem


@pytest.fixture
def record() -> dict:
    return json.loads(VERDICTS.read_text())


def test_the_verdicts_are_those_of_the_list(record):
    listed = [(each.ident, each.title, each.what_must_hold, each.gate) for each in all_faults()]
    written = [(e["ident"], e["title"], e["must_hold"], e["gate"]) for e in record["faults"]]
    assert written == listed
    assert len(listed) >= 30


def test_every_fault_was_proven_and_everything_held(record):
    for each in record["faults"]:
        assert each["proofs"], each["ident"]
        assert each["passed"], each["ident"]
        assert each["jobs"] == each["reported_once"] > 0, each["ident"]
        assert each["wrong_slots"] == each["wrong_objects"] == each["reported_twice"] == 0


def test_the_document_is_made_from_the_verdicts(record):
    assert DOCUMENT.read_text() == document(record)
