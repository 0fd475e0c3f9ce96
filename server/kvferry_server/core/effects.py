"""What the engine asks the world to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from .types import (
    Admission,
    BreakerState,
    JobKind,
    JobResult,
    ObjectRef,
    Presence,
)


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Move one chunk; ends in exactly one `TransferFinished`."""

    transfer_id: int
    session_id: str
    kind: JobKind
    slot: int
    ref: ObjectRef
    attempt: int
    """1 for the first attempt."""
    accepted_at: float
    """When its job was accepted, in monotonic seconds."""


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Ask the store for the presence of objects; ends in exactly one `ProbeFinished`."""

    probe_id: int
    refs: tuple[ObjectRef, ...]


@dataclass(frozen=True, slots=True)
class SubmitReply:
    """Answer to `SubmitJobs`, in the order of its jobs."""

    admissions: tuple[Admission, ...]


@dataclass(frozen=True, slots=True)
class LookupReply:
    """Answer to `StartLookup`, in the order of its groups and keys."""

    lookup_id: int
    verdicts: tuple[tuple[Presence, ...], ...]


@dataclass(frozen=True, slots=True)
class PollReply:
    """Answer to `StartPoll`: results above its `ack_seq`, oldest first."""

    poll_id: int
    results: tuple[JobResult, ...]
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class DrainReply:
    """Answer to `StartDrain`: jobs with an active chunk, 0 unless the deadline passed."""

    drain_id: int
    running_jobs: int


@dataclass(frozen=True, slots=True)
class SessionQuiet:
    """A closed session has no active chunk: unmap its region, then end its lease."""

    session_id: str


@dataclass(frozen=True, slots=True)
class JobFinished:
    """For logs and metrics: a job became terminal."""

    session_id: str
    request_id: str
    result: JobResult
    withheld: int = 0
    """Chunks among the SHED ones that the operator's admission settings held back."""


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """For logs and metrics: `kind` STORE is the write breaker, LOAD the read breaker."""

    kind: JobKind
    state: BreakerState


@dataclass(frozen=True, slots=True)
class Abort:
    """A transfer or probe outlived the hard deadline: end the process at once, without clean-up."""

    reason: str


Effect = (
    StartTransfer
    | StartProbe
    | SubmitReply
    | LookupReply
    | PollReply
    | DrainReply
    | SessionQuiet
    | JobFinished
    | BreakerChanged
    | Abort
)
