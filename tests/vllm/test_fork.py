"""A tier in a forked child has nothing to report of its parent's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vllm.v1.kv_offload.base import make_offload_key

from tests.client.scripted import ScriptedDaemon
from tests.client.test_fork import fork, reap

from .conftest import Engine

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Job:
    """What vLLM calls TransferJob, as far as a failed submission is concerned."""

    job_id = 4711


def test_G13_a_child_reports_no_job_event_or_count_of_its_parents(
    daemon: ScriptedDaemon, make_engine: Callable[..., Engine]
) -> None:
    del daemon
    engine = make_engine(options={"enable_kv_events": True})
    tier = engine.tier
    engine.store([make_offload_key(bytes(32), 0)], engine.request("r"), 7)
    engine.settle()
    assert tier.get_stats() is not None
    tier._fail_submission(Job())
    assert tier._events

    def child() -> None:
        assert not tier.has_pending_work()
        assert list(tier.get_finished_jobs()) == []
        assert list(tier.take_events()) == []
        counted = tier.get_stats().data
        for name, series in counted["data"].items():
            if counted["types"][name] == "counter":
                assert set(series.values()) == {0}, name

    assert reap(fork(child)) == 0
    assert [result.job_id for result in tier.get_finished_jobs()] == [4711]
    assert tier.take_events()
