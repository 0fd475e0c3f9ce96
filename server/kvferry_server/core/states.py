"""Every state change of a chunk, as data.

The docs' diagram is drawn from these tables. Only ACTIVE chunks are touched by I/O:
canary, checksum, transfer and verification all happen between START and RETRY or FINISH.
"""

from __future__ import annotations

from enum import StrEnum, unique

from .errors import IllegalTransition
from .types import JobKind, Outcome, TransferStatus


@unique
class ChunkState(StrEnum):
    """Where a chunk is in its life."""

    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"


@unique
class ChunkEvent(StrEnum):
    """What can happen to a chunk."""

    START = "start"
    """A transfer slot is free: I/O may touch the chunk's slot from now on."""
    RETRY = "retry"
    """The attempt failed for a retriable reason and quiet has been reached."""
    FINISH = "finish"
    """The attempt is terminal and nothing touches the slot any more."""
    DROP = "drop"
    """The chunk ends without (another) transfer."""


TRANSITIONS: dict[tuple[ChunkState, ChunkEvent], ChunkState] = {
    (ChunkState.QUEUED, ChunkEvent.START): ChunkState.ACTIVE,
    (ChunkState.QUEUED, ChunkEvent.DROP): ChunkState.DONE,
    (ChunkState.ACTIVE, ChunkEvent.RETRY): ChunkState.QUEUED,
    (ChunkState.ACTIVE, ChunkEvent.FINISH): ChunkState.DONE,
}

OUTCOMES: dict[tuple[JobKind, ChunkEvent], frozenset[Outcome]] = {
    (JobKind.STORE, ChunkEvent.DROP): frozenset(
        {
            Outcome.SKIPPED_PRESENT,
            Outcome.SKIPPED_IN_FLIGHT,
            Outcome.SHED,
            Outcome.EXPIRED,
            Outcome.CANCELLED,
        }
    ),
    (JobKind.STORE, ChunkEvent.FINISH): frozenset(
        {Outcome.STORED, Outcome.DENIED, Outcome.UNAVAILABLE, Outcome.INTERNAL}
    ),
    (JobKind.LOAD, ChunkEvent.DROP): frozenset(
        {Outcome.SHED, Outcome.EXPIRED, Outcome.UNAVAILABLE, Outcome.CANCELLED}
    ),
    (JobKind.LOAD, ChunkEvent.FINISH): frozenset(
        {
            Outcome.LOADED,
            Outcome.MISSING,
            Outcome.CORRUPT,
            Outcome.WRONG_SIZE,
            Outcome.DENIED,
            Outcome.UNAVAILABLE,
            Outcome.INTERNAL,
        }
    ),
}
"""The outcomes with which each terminal event may end a chunk of each kind."""

ENDINGS = {
    TransferStatus.MISSING: Outcome.MISSING,
    TransferStatus.CORRUPT: Outcome.CORRUPT,
    TransferStatus.WRONG_SIZE: Outcome.WRONG_SIZE,
    TransferStatus.DENIED: Outcome.DENIED,
    TransferStatus.UNAVAILABLE: Outcome.UNAVAILABLE,
    TransferStatus.INTERNAL: Outcome.INTERNAL,
}
"""What an attempt that is over makes of its chunk, unless it was successful."""

SUCCESS = {JobKind.STORE: Outcome.STORED, JobKind.LOAD: Outcome.LOADED}
"""What a successful attempt makes of it."""

_LEGAL: dict[tuple[ChunkState, ChunkEvent, JobKind, Outcome | None], ChunkState] = {
    (state, event, kind, outcome): after
    for (state, event), after in TRANSITIONS.items()
    for kind in JobKind
    for outcome in OUTCOMES.get((kind, event), (None,))
}
"""Both tables multiplied out."""


def next_state(
    state: ChunkState, event: ChunkEvent, kind: JobKind, outcome: Outcome | None = None
) -> ChunkState:
    """The state after an event.

    `outcome` is how the chunk ends; it is given exactly for FINISH and DROP.

    Raises:
        IllegalTransition: the tables do not allow it.
    """
    after = _LEGAL.get((state, event, kind, outcome))
    if after is None:
        ending = f" with {outcome.name}" if outcome is not None else ""
        raise IllegalTransition(f"{event.name}{ending} of a {kind.name} chunk that is {state.name}")
    return after


def outcomes_of(kind: JobKind) -> list[Outcome]:
    """Every outcome with which a chunk of this kind can end."""
    return sorted(OUTCOMES[kind, ChunkEvent.DROP] | OUTCOMES[kind, ChunkEvent.FINISH])
