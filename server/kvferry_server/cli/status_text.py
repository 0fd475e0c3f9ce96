"""The words of `kvferry status`: reads no clock, prints nothing.

Imports the contract's messages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvferry.v1 import admin_pb2, types_pb2

from .text import printable, size, span

SHOWN_JOBS = 10

_BREAKERS = {
    admin_pb2.BREAKER_STATE_CLOSED: "closed",
    admin_pb2.BREAKER_STATE_OPEN: "OPEN",
    admin_pb2.BREAKER_STATE_HALF_OPEN: "half-open",
}
_KINDS = {types_pb2.JOB_KIND_STORE: "store", types_pb2.JOB_KIND_LOAD: "load"}


def render(
    server: admin_pb2.GetServerInfoResponse,
    sessions: Sequence[admin_pb2.SessionInfo],
    jobs: Sequence[admin_pb2.JobInfo],
    now: float,
) -> str:
    """One screen about a daemon.

    Args:
        server: its snapshot.
        sessions: its sessions.
        jobs: its open jobs, oldest first.
        now: Unix time in seconds.
    """
    lines = [*_server(server, now), "", *_sessions(sessions, now)]
    if jobs:
        lines += ["", *_jobs(jobs, sessions)]
    if any(server.counters.values()):
        lines += ["", *_counters(server)]
    return "\n".join(lines)


def _server(server: admin_pb2.GetServerInfoResponse, now: float) -> list[str]:
    store = server.store
    up = span(max(0.0, now - server.start_time.ToNanoseconds() / 1e9))
    paused = [
        name
        for name, on in (("stores", server.stores_paused), ("loads", server.loads_paused))
        if on
    ]
    state = f"ready ({store.settings})" if store.ready else "NOT READY"
    lines = [
        f"kvferry {printable(server.version)}, up {up}, boot {printable(server.boot_id[:8])}",
        f"store     {printable(store.url)}: {printable(state)}",
    ]
    if store.problem:
        lines.append(f"problem   {printable(store.problem)}")
    reading, writing = (
        _BREAKERS.get(state, "unknown") for state in (store.read_breaker, store.write_breaker)
    )
    lines.append(f"breakers  reading {reading}, writing {writing}")
    lines.append(
        f"chunks    {server.active_chunks} of {store.max_active_chunks} in transfer, "
        f"{server.queued_store_chunks} queued to store, {server.queued_load_chunks} to load"
    )
    if paused:
        lines.append(f"paused    {' and '.join(paused)}")
    return lines


def _sessions(sessions: Sequence[admin_pb2.SessionInfo], now: float) -> list[str]:
    if not sessions:
        return ["sessions  none: no engine has attached its memory"]
    rows = [("session", "engine", "slots", "chunk", "open jobs", "in transfer", "attached", "")]
    for session in sessions:
        attached = span(max(0.0, now - session.attach_time.ToNanoseconds() / 1e9))
        rows.append(
            (
                printable(session.session_id[:8]),
                printable(session.engine_id),
                str(session.slots),
                size(session.slot_bytes),
                str(session.open_jobs),
                str(session.active_chunks),
                attached,
                "closing" if session.closing else "",
            )
        )
    return table(rows)


def _jobs(
    jobs: Sequence[admin_pb2.JobInfo], sessions: Sequence[admin_pb2.SessionInfo]
) -> list[str]:
    total = max(len(jobs), sum(session.open_jobs for session in sessions))
    more = total - min(len(jobs), SHOWN_JOBS)
    return [*job_table(jobs[:SHOWN_JOBS]), *([f"and {more} more jobs"] if more else [])]


def job_table(jobs: Sequence[admin_pb2.JobInfo]) -> list[str]:
    """Lines about jobs, the first one with the columns' names."""
    rows = [("job", "session", "kind", "queued", "in transfer", "ended", "age", "request")]
    rows += [
        (
            str(job.job_id),
            printable(job.session_id[:8]),
            _KINDS.get(job.kind, "unknown"),
            str(job.queued_chunks),
            str(job.active_chunks),
            str(job.finished_chunks),
            span(job.age.ToNanoseconds() / 1e9),
            printable(job.request_id),
        )
        for job in jobs
    ]
    return table(rows)


def _counters(server: admin_pb2.GetServerInfoResponse) -> list[str]:
    rows = [("since the start", "")]
    rows += [
        (printable(name), f"{count:,}") for name, count in sorted(server.counters.items()) if count
    ]
    return table(rows)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width; numbers to the right."""
    grid = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*grid, strict=True)]
    numeric = [
        all(cell.replace(",", "").isdigit() for cell in column[1:])
        for column in zip(*grid, strict=True)
    ]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in grid
    ]
