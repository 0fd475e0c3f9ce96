"""How often the model check takes each transition: `make model` prints it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from kvferry_server.core.states import OUTCOMES, TRANSITIONS
from kvferry_server.core.tables import Chunk
from kvferry_server.core.types import JobKind, TransferStatus

from .test_machine import EngineMachine, JobMachine

LEAST = 100
RUNS = settings(
    max_examples=1_000,
    stateful_step_count=80,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class EndingsMachine(JobMachine):
    """Whose transfers end in every way alike, so that the rare ones are seen often."""

    @precondition(lambda self: self.model.running)
    @rule(statuses=st.lists(st.sampled_from(TransferStatus), min_size=1, max_size=4))
    def finish_in_any_way(self, statuses):
        for status in statuses[: len(self.model.running)]:
            self.finish_transfer(0, status)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_transition_is_taken_a_hundred_times(monkeypatch):
    """Each arrow of the table for each kind of job, and each outcome that may end it."""
    taken: Counter[tuple[str, ...]] = Counter()
    apply = Chunk.apply

    def counted(chunk, event, outcome=None):
        state = chunk.state
        apply(chunk, event, outcome)
        kind = chunk.job.kind
        taken[kind.name, state.name, event.name, outcome.name if outcome is not None else ""] += 1

    monkeypatch.setattr(Chunk, "apply", counted)
    for machine in (EndingsMachine, EngineMachine):
        run_state_machine_as_test(machine, settings=RUNS)
    expected = {
        (kind.name, state.name, event.name, outcome.name if outcome is not None else "")
        for kind in JobKind
        for state, event in TRANSITIONS
        for outcome in OUTCOMES.get((kind, event), {None})
    }
    for transition in sorted(expected):
        print(f"{taken[transition]:8,}  {' '.join(transition)}")  # noqa: T201 - of `make model`
    assert taken.keys() <= expected
    print(f"{sum(taken.values()):8,}  in all")  # noqa: T201 - of `make model`
    assert [each for each in sorted(expected) if taken[each] < LEAST] == []
