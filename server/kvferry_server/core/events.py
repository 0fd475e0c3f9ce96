"""What can happen to the engine. All times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .types import JobKind, JobSpec, LookupGroup, Presence, SessionSpec, TransferStatus


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A region was attached."""

    session: SessionSpec


@dataclass(frozen=True, slots=True)
class CloseSession:
    """The engine is done or gone: cancel what is queued, await what is active.

    Ends in the effect `SessionQuiet`. Repeating it changes nothing.
    """

    session_id: str


@dataclass(frozen=True, slots=True)
class SubmitJobs:
    """Store or load jobs; admitted as a whole or refused as a whole.

    Answered by `SubmitReply` in the same step.
    """

    session_id: str
    kind: JobKind
    jobs: tuple[JobSpec, ...]


@dataclass(frozen=True, slots=True)
class StartLookup:
    """A lookup; answered by one `LookupReply`, at `deadline` at the latest."""

    lookup_id: int
    session_id: str
    groups: tuple[LookupGroup, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class CancelLookup:
    """Nobody waits for this lookup any more. Unknown ids are ignored."""

    lookup_id: int


@dataclass(frozen=True, slots=True)
class StartPoll:
    """A long poll; answered by one `PollReply`, at `deadline` at the latest."""

    poll_id: int
    session_id: str
    ack_seq: int
    deadline: float


@dataclass(frozen=True, slots=True)
class CancelPoll:
    """Nobody waits for this poll any more. Unknown ids are ignored."""

    poll_id: int


@dataclass(frozen=True, slots=True)
class StartDrain:
    """Cancel the session's queued chunks; answered by one `DrainReply` once none is active."""

    drain_id: int
    session_id: str
    deadline: float


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Nobody waits for this drain any more. Unknown ids are ignored."""

    drain_id: int


@dataclass(frozen=True, slots=True)
class TransferFinished:
    """An attempt ended and nothing touches the slot any more."""

    transfer_id: int
    status: TransferStatus


@dataclass(frozen=True, slots=True)
class ProbeFinished:
    """A probe ended; `verdicts` in the order of its `StartProbe`.

    UNKNOWN means that the store failed for that key; `failed` that no key got an answer
    because the store can't be reached.
    """

    probe_id: int
    verdicts: tuple[Presence, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class StoreReadiness:
    """The preflight passed or failed. The engine starts as not ready."""

    ready: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many chunks and probe keys the object store really runs at once."""

    max_active_chunks: int


@dataclass(frozen=True, slots=True)
class SetPaused:
    """Stores or loads are switched off or on by an operator; None leaves as it is."""

    stores: bool | None = None
    loads: bool | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Refuse new sessions and jobs, cancel what is queued, await what is active."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Due at `Engine.next_wakeup()`; harmless earlier."""


Event = (
    OpenSession
    | CloseSession
    | SubmitJobs
    | StartLookup
    | CancelLookup
    | StartPoll
    | CancelPoll
    | StartDrain
    | CancelDrain
    | TransferFinished
    | ProbeFinished
    | StoreReadiness
    | Capacity
    | SetPaused
    | Stop
    | Tick
)
