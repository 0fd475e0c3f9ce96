"""Read-only pictures of sessions and jobs for status displays."""

from __future__ import annotations

from dataclasses import dataclass

from .states import ChunkState
from .tables import Job, Session
from .types import JobKind, SessionSpec


@dataclass(frozen=True, slots=True)
class SessionView:
    """An attached region; `opened_at` in the engine's monotonic seconds."""

    spec: SessionSpec
    opened_at: float
    open_jobs: int
    active_chunks: int
    closing: bool


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that is not yet acknowledged; `accepted_at` in the engine's monotonic seconds."""

    session_id: str
    job_id: int
    kind: JobKind
    request_id: str
    accepted_at: float
    queued_chunks: int
    active_chunks: int
    finished_chunks: int


def view_session(session: Session) -> SessionView:
    """Picture of a session."""
    return SessionView(
        session.spec,
        session.opened_at,
        len(session.jobs),
        session.active_chunks,
        session.closing,
    )


def view_job(job: Job) -> JobView:
    """Picture of a job."""
    return JobView(
        job.session.spec.session_id,
        job.spec.job_id,
        job.kind,
        job.spec.context.request_id,
        job.accepted_at,
        job.counts[ChunkState.QUEUED],
        job.counts[ChunkState.ACTIVE],
        job.counts[ChunkState.DONE],
    )
