from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.errors import IllegalTransition
from kvferry_server.core.states import (
    OUTCOMES,
    TRANSITIONS,
    ChunkEvent,
    ChunkState,
    next_state,
    outcomes_of,
)
from kvferry_server.core.tables import Chunk, Job, Session
from kvferry_server.core.types import JobKind, JobSpec, Outcome, SessionSpec

from .world import key, ref

ENDINGS = {ChunkEvent.FINISH, ChunkEvent.DROP}


def chunk(kind):
    session = Session(SessionSpec("s", "e", "ns", 4, 100), opened_at=0.0)
    job = Job(session, JobSpec(1, (key("a"),), (0,)), kind, accepted_at=0.0, deadline=1.0, order=1)
    job.chunks.append(Chunk(job, ref("a"), 0))
    job.counts[ChunkState.QUEUED] = 1
    return job.chunks[0]


@pytest.mark.parametrize(
    ("state", "event", "kind", "outcome"),
    list(product(ChunkState, ChunkEvent, JobKind, [None, *Outcome])),
)
def test_every_move_is_the_tables_or_raises_and_changes_nothing(state, event, kind, outcome):
    one = chunk(kind)
    one.state = state
    one.job.counts = {each: int(each is state) for each in ChunkState}
    allowed = (state, event) in TRANSITIONS and (
        outcome in OUTCOMES[kind, event] if event in ENDINGS else outcome is None
    )
    if allowed:
        assert next_state(state, event, kind, outcome) is TRANSITIONS[state, event]
        one.apply(event, outcome)
        assert (one.state, one.outcome) == (TRANSITIONS[state, event], outcome)
    else:
        with pytest.raises(IllegalTransition, match=event.name):
            one.apply(event, outcome)
        assert (one.state, one.outcome) == (state, None)
    assert one.job.counts == {each: int(each is one.state) for each in ChunkState}


def test_an_illegal_end_says_what_it_would_have_been():
    with pytest.raises(
        IllegalTransition, match="FINISH with LOADED of a STORE chunk that is ACTIVE"
    ):
        next_state(ChunkState.ACTIVE, ChunkEvent.FINISH, JobKind.STORE, Outcome.LOADED)


def test_only_active_chunks_can_end_by_a_transfer_and_only_queued_ones_without():
    assert {s for s, e in TRANSITIONS if e is ChunkEvent.FINISH} == {ChunkState.ACTIVE}
    assert {s for s, e in TRANSITIONS if e is ChunkEvent.DROP} == {ChunkState.QUEUED}
    assert all(state is not ChunkState.DONE for state, _ in TRANSITIONS)


def test_outcomes_of_a_kind_are_sorted_and_complete():
    for kind in JobKind:
        expected = {o for (k, _), outcomes in OUTCOMES.items() if k is kind for o in outcomes}
        assert outcomes_of(kind) == sorted(expected)
    assert Outcome.LOADED not in outcomes_of(JobKind.STORE)
    assert Outcome.STORED not in outcomes_of(JobKind.LOAD)


@given(st.lists(st.sampled_from(JobKind), max_size=4))
def test_a_slot_is_held_until_the_last_of_its_chunks_is_terminal(kinds):
    session = Session(SessionSpec("s", "e", "ns", 4, 100), opened_at=0.0)
    chunks = [chunk(kind) for kind in kinds]
    for one in chunks:
        session.hold_slot(one)
    for at, one in enumerate(chunks):
        rest = [c.job.kind for c in chunks[at:]]
        assert (0 in session.storing_slots) == (JobKind.STORE in rest)
        session.free_slot(one)
    assert not session.storing_slots
    assert not session.loading_slots
