"""Values of the client's public surface. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum, unique


@unique
class JobKind(IntEnum):
    """Which way a job moves bytes; the numbers are the wire's."""

    STORE = 1
    """Region to object store."""
    LOAD = 2
    """Object store to region."""


@unique
class Presence(IntEnum):
    """Whether an object exists; the numbers are the wire's."""

    PRESENT = 1
    ABSENT = 2
    UNKNOWN = 3
    """Not known in time: a miss that says nothing about the object."""


@unique
class Outcome(IntEnum):
    """How a chunk ended; 1 to 13 are the wire's numbers (`ChunkOutcome`)."""

    STORED = 1
    SKIPPED_PRESENT = 2
    SKIPPED_IN_FLIGHT = 3
    LOADED = 4
    MISSING = 5
    CORRUPT = 6
    WRONG_SIZE = 7
    SHED = 8
    EXPIRED = 9
    DENIED = 10
    UNAVAILABLE = 11
    CANCELLED = 12
    INTERNAL = 13
    LOST = 101
    """The session ended before a result arrived; nothing touches the slot any more."""
    NOT_SENT = 102
    """Never left this process: no daemon, full queue, refused request, drain or close."""


STORED_OUTCOMES = frozenset({Outcome.STORED, Outcome.SKIPPED_PRESENT})
"""The object is known to be there."""
LOADED_OUTCOMES = frozenset({Outcome.LOADED})
SUCCESS_OUTCOMES = STORED_OUTCOMES | LOADED_OUTCOMES | {Outcome.SKIPPED_IN_FLIGHT}


@unique
class ClientState(Enum):
    """Where a client stands with its daemon."""

    IDLE = "idle"
    """Not started."""
    CONNECTING = "connecting"
    """No session; the client tries again and again."""
    ATTACHED = "attached"
    """The region is attached, jobs are accepted."""
    ENDING = "ending"
    """The session is half-closed; the daemon's end-of-file is awaited."""
    CLOSED = "closed"
    """`close` was called."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The vLLM request that a job or lookup serves.

    `priority` is vLLM's (lower runs earlier). `transfer_params` must not carry secrets.
    """

    request_id: str = ""
    priority: int = 0
    transfer_params: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: nothing touches its slots any more. Each job has exactly one."""

    job_id: int
    """What `store` or `load` returned."""
    kind: JobKind
    outcomes: tuple[Outcome, ...]
    """One per key, in the order of submission."""
    transferred_bytes: int = 0
    """Moved to or from the object store."""
    transfer_seconds: float = 0.0
    """From the first chunk's start to the last one's end; 0 if none started."""

    @property
    def success(self) -> bool:
        """True if no chunk failed."""
        return SUCCESS_OUTCOMES.issuperset(self.outcomes)


@dataclass(frozen=True, slots=True)
class LookupReply:
    """The verdicts of one lookup, in the order of its keys."""

    ticket: int
    """What `lookup` returned."""
    verdicts: tuple[Presence, ...] = field(default=())
