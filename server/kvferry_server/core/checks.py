"""What a request must satisfy before anything of it starts.

Every function raises and changes nothing, or returns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InvalidArgument, ResourceExhausted
from .naming import MIN_KEY_BYTES
from .tables import Session
from .types import EngineSettings, JobKind, JobSpec, LookupGroup


def check_jobs(
    session: Session, kind: JobKind, jobs: Sequence[JobSpec], settings: EngineSettings
) -> None:
    """Check a Store or Load against the caps, the region and the session's open jobs.

    Jobs whose id was seen before are checked for their form only: they start nothing.

    Raises:
        InvalidArgument: names the field.
        ResourceExhausted: names the limit.
    """
    chunks = sum(len(job.keys) for job in jobs)
    size = chunks * session.spec.slot_bytes
    if not jobs:
        raise InvalidArgument("jobs is empty; send at least one", reason="NO_JOBS", field="jobs")
    _at_most(len(jobs), settings.max_jobs_per_request, "jobs", "max_jobs_per_request")
    _at_most(chunks, settings.max_keys_per_request, "jobs.keys", "max_keys_per_request")
    _at_most(size, settings.max_bytes_per_request, "jobs.slots", "max_bytes_per_request")
    for at, job in enumerate(jobs):
        _check_form(job, f"jobs[{at}]", session, settings)
    new = [(at, job) for at, job in enumerate(jobs) if job.job_id not in session.seen]
    _check_ids(new, session, settings)
    _check_open_chunks(sum(len(job.keys) for _, job in new), session, settings)
    _check_slots(new, kind, session)


def check_groups(groups: Sequence[LookupGroup], settings: EngineSettings) -> None:
    """Check a Lookup against the caps.

    Raises:
        InvalidArgument: names the field.
    """
    count = sum(len(group.keys) for group in groups)
    _at_most(count, settings.max_keys_per_request, "groups.keys", "max_keys_per_request")
    for at, group in enumerate(groups):
        _check_keys(group.keys, f"groups[{at}].keys", settings)


def check_ack(ack_seq: int, last_seq: int) -> None:
    """Check a Poll's acknowledgement.

    Raises:
        InvalidArgument: nothing with that sequence number was ever sent.
    """
    if ack_seq > last_seq:
        raise InvalidArgument(
            f"ack_seq is {ack_seq}, but the last result of this session is {last_seq}",
            reason="ACK_BEYOND_LAST",
            field="ack_seq",
        )


def _at_most(value: int, limit: int, field: str, limit_name: str) -> None:
    if value > limit:
        raise InvalidArgument(
            f"{field}: {value} exceeds {limit_name} = {limit}; split the request",
            reason="REQUEST_TOO_LARGE",
            field=field,
        )


def _check_keys(keys: Sequence[bytes], field: str, settings: EngineSettings) -> None:
    for at, key in enumerate(keys):
        if not MIN_KEY_BYTES <= len(key) <= settings.max_key_bytes:
            raise InvalidArgument(
                f"{field}[{at}] has {len(key)} bytes; a key has {MIN_KEY_BYTES} to"
                f" {settings.max_key_bytes}: block hash, then 4-byte group index",
                reason="BAD_KEY",
                field=f"{field}[{at}]",
            )


def _check_form(job: JobSpec, field: str, session: Session, settings: EngineSettings) -> None:
    if job.job_id < 1:
        raise InvalidArgument(
            f"{field}.job_id is {job.job_id}; ids count from 1",
            reason="BAD_JOB_ID",
            field=f"{field}.job_id",
        )
    if not job.keys:
        raise InvalidArgument(
            f"{field}.keys is empty; a job has at least one chunk",
            reason="NO_KEYS",
            field=f"{field}.keys",
        )
    if len(job.keys) != len(job.slots):
        raise InvalidArgument(
            f"{field} has {len(job.keys)} keys but {len(job.slots)} slots; send one slot per key",
            reason="KEYS_SLOTS_MISMATCH",
            field=f"{field}.slots",
        )
    _check_keys(job.keys, f"{field}.keys", settings)
    if len(set(job.keys)) != len(job.keys):
        raise InvalidArgument(
            f"{field}.keys names a key twice", reason="DUPLICATE_KEY", field=f"{field}.keys"
        )
    if len(set(job.slots)) != len(job.slots):
        raise InvalidArgument(
            f"{field}.slots names a slot twice", reason="DUPLICATE_SLOT", field=f"{field}.slots"
        )
    for at, slot in enumerate(job.slots):
        if not 0 <= slot < session.spec.slots:
            raise InvalidArgument(
                f"{field}.slots[{at}] is {slot}; the region has slots 0 to"
                f" {session.spec.slots - 1}",
                reason="SLOT_OUT_OF_RANGE",
                field=f"{field}.slots[{at}]",
            )


def _check_ids(
    new: Sequence[tuple[int, JobSpec]], session: Session, settings: EngineSettings
) -> None:
    ids = [job.job_id for _, job in new]
    if len(set(ids)) != len(ids):
        raise InvalidArgument(
            "jobs: two jobs have the same job_id", reason="DUPLICATE_JOB_ID", field="jobs.job_id"
        )
    limit = settings.max_open_jobs
    if len(session.jobs) + len(new) > limit:
        raise ResourceExhausted(
            f"jobs: the session would have {len(session.jobs) + len(new)} open jobs,"
            f" max_open_jobs is {limit}; Poll and acknowledge results first",
            reason="TOO_MANY_OPEN_JOBS",
            field="jobs",
        )
    if len(session.seen) + len(new) > limit + 1 and len(session.seen) > 1:
        raise ResourceExhausted(
            f"jobs.job_id: more than {limit} gaps in this session's job ids;"
            " number jobs 1, 2, 3 and so on",
            reason="SPARSE_JOB_IDS",
            field="jobs.job_id",
        )


def _check_open_chunks(new: int, session: Session, settings: EngineSettings) -> None:
    would_be, limit = session.open_chunks + new, settings.max_open_chunks
    if would_be > limit:
        raise ResourceExhausted(
            f"jobs.keys: the session would have {would_be} chunks in open jobs,"
            f" max_open_chunks is {limit}; Poll and acknowledge results first",
            reason="TOO_MANY_OPEN_CHUNKS",
            field="jobs.keys",
        )


def _check_slots(new: Sequence[tuple[int, JobSpec]], kind: JobKind, session: Session) -> None:
    """A load's slot is its own; a store's slot may be read by other stores."""
    taken: set[int] = set()
    for at, job in new:
        for index, slot in enumerate(job.slots):
            busy = slot in session.loading_slots
            if kind is JobKind.LOAD:
                busy = busy or slot in session.storing_slots or slot in taken
            if busy:
                raise InvalidArgument(
                    f"jobs[{at}].slots[{index}]: slot {slot} is in use by an unfinished job",
                    reason="SLOT_IN_USE",
                    field=f"jobs[{at}].slots[{index}]",
                )
        taken.update(job.slots)
