"""Runs one fault and judges it: reported once, right bytes in slots and objects, back to work."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from .content import Tally, content_of, key_in_name
from .rig import Scenario

if TYPE_CHECKING:
    from .catalogue import FaultCase

MAX_TEXT = 2000


@dataclass
class Verdict:
    """What came of a fault."""

    ident: str
    kind: str
    title: str
    store: str
    must_hold: str
    gate: bool = False
    proofs: list[str] = field(default_factory=list)
    jobs: int = 0
    reported_once: int = 0
    reported_twice: int = 0
    wrong_slots: int = 0
    wrong_objects: int = 0
    objects_checked: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    recovery_seconds: float = 0.0
    seconds: float = 0.0
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything holds and the fault was proven."""
        return bool(self.proofs) and not self.problem

    def as_json(self) -> dict[str, object]:
        """For verdicts.json."""
        return asdict(self) | {"passed": self.passed}


def judge(case: FaultCase) -> Verdict:
    """Run one fault on a fresh stage."""
    verdict = Verdict(case.ident, case.kind, case.title, case.store, case.what_must_hold)
    verdict.gate = case.gate
    began = time.monotonic()
    scenario = Scenario(case.store)
    try:
        if case.started:
            scenario.start()
        case.run(scenario)
        verdict.recovery_seconds = round(scenario.recover(), 2)
        _judge_bytes(scenario, verdict)
    except Exception:  # noqa: BLE001 - whatever went wrong is the verdict
        verdict.problem = traceback.format_exc()[-MAX_TEXT:]
        if scenario.daemon is not None and scenario.daemon.log.exists():
            verdict.problem += scenario.daemon.log.read_text(errors="replace")[-MAX_TEXT:]
    finally:
        verdict.proofs = scenario.proofs
        scenario.close()
    verdict.seconds = round(time.monotonic() - began, 1)
    return verdict


def _judge_bytes(scenario: Scenario, verdict: Verdict) -> None:
    """Look at every slot at rest and every object, and at the count of results."""
    for engine in scenario.engines:
        engine.settle()
        engine.ledger.check_all()
    tallies = [each.ledger.tally for each in scenario.engines] + scenario.other_tallies
    for name, data in scenario.backing.objects().items():
        key = key_in_name(name)
        if key is None or key in scenario.damaged:
            continue
        verdict.objects_checked += 1
        verdict.wrong_objects += data != content_of(key)
    _add(verdict, tallies)
    problems = [
        f"{count} {what}"
        for count, what in (
            (verdict.jobs - verdict.reported_once, "jobs not reported"),
            (verdict.reported_twice, "jobs reported twice or out of the blue"),
            (verdict.wrong_slots, "slots with wrong bytes"),
            (verdict.wrong_objects, "objects with wrong bytes"),
        )
        if count
    ]
    verdict.problem = ", ".join(problems)


def _add(verdict: Verdict, tallies: list[Tally]) -> None:
    for tally in tallies:
        verdict.jobs += tally.submitted
        verdict.reported_once += tally.reported
        verdict.reported_twice += tally.reported_twice + tally.reported_unknown
        verdict.wrong_slots += tally.wrong_loads + tally.wrong_slots
        for outcome, count in tally.outcomes.items():
            verdict.outcomes[outcome] = verdict.outcomes.get(outcome, 0) + count
