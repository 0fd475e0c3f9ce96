"""A tier that is used on in a forked child: its parent's jobs and lookups are not the child's."""

from __future__ import annotations

import pytest

from kvferry_client import Client, RequestContext
from kvferry_client.tier import TierLogic, Verdict

from .conftest import eventually, key
from .scripted import ScriptedDaemon
from .test_fork import fork, reap

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
A, B = RequestContext("a"), RequestContext("b")


def test_G13_a_child_neither_reports_nor_awaits_its_parents_jobs(
    daemon: ScriptedDaemon, client: Client
) -> None:
    """Client ids begin anew in the child: a result of its own must not end the parent's job."""
    logic = TierLogic(client)
    daemon.holding = True
    logic.submit_store(70, [key(1)], [1], A)
    eventually(lambda: daemon.sessions[0].held)

    def child() -> None:
        assert not logic.has_pending_work()
        assert logic.finished() == []
        logic.submit_store(71, [], [], A)
        assert [job.job_id for job in logic.finished()] == [71]
        assert logic.unknown_results == 0
        logic.drain()
        assert logic.finished() == []

    assert reap(fork(child)) == 0
    assert logic.has_pending_work()
    daemon.release()
    got: list[int] = []
    eventually(lambda: got.extend(job.job_id for job in logic.finished()) or got)
    assert got == [70]


def test_G13_a_child_asks_anew_what_its_parent_was_asking(
    daemon: ScriptedDaemon, client: Client
) -> None:
    logic = TierLogic(client)
    daemon.objects[key(1)] = bytes(4096)
    daemon.delays["Lookup"] = 0.5
    assert logic.lookup(key(1), A) is Verdict.RETRY
    logic.flush()
    assert logic.lookup(key(2), B) is Verdict.RETRY

    def child() -> None:
        assert not logic.has_pending_work()
        for context, number in ((A, 1), (B, 2)):
            assert logic.lookup(key(number), context) is Verdict.RETRY
            logic.flush()
            eventually(
                lambda c=context, n=number: logic.lookup(key(n), c) is not Verdict.RETRY, timeout=5
            )
        assert not logic.has_pending_work()

    assert reap(fork(child)) == 0
    eventually(lambda: logic.lookup(key(1), A) is Verdict.HIT)
    logic.flush()
    eventually(lambda: logic.lookup(key(2), B) is Verdict.MISS)
