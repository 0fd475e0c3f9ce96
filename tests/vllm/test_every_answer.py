"""Whatever the daemon answers, no method raises and each job gets exactly one result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

from kvferry.v1 import offload_pb2
from tests.client.scripted import ScriptedDaemon

from .conftest import Engine

pytestmark = pytest.mark.vllm
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
METHODS = ["Lookup", "Store", "Load", "Poll"]
JOBS = {1: "store", 2: "load", 3: "store"}


def key(number: int) -> bytes:
    return make_offload_key(number.to_bytes(32, "big"), 0)


def job(number: int, context: Any = None) -> Any:
    """A job of one chunk, as the manager submits it."""
    made = type("Job", (), {})()
    made.job_id, made.keys = number, [key(number)]
    made.req_context = context or ReqContext(req_id="r")
    made.chunk_ids = made.block_ids = [number]
    return made


def use_all_methods(engine: Engine, seconds: float = 20.0) -> None:
    """Use the tier as the manager does until every job has its result; check that none has two."""
    tier, context = engine.tier, ReqContext(req_id="r")
    tier.on_new_request(context)
    for number, kind in JOBS.items():
        (tier.submit_store if kind == "store" else tier.submit_load)(job(number, context))
    seen: list[int] = []
    end = time.monotonic() + seconds
    answer = LookupResult.RETRY
    while len(seen) < len(JOBS) or answer is LookupResult.RETRY:
        assert time.monotonic() < end, f"results of {seen} only, lookup {answer.name}"
        answer = tier.lookup(key(9), context)
        tier.on_schedule_end(None)
        seen += [result.job_id for result in tier.get_finished_jobs()]
        tier.has_pending_work()
        tier.get_stats()
        list(tier.take_events())
        time.sleep(0.005)
    tier.on_request_finished(context)
    tier.drain_jobs()
    seen += [result.job_id for result in tier.get_finished_jobs()]
    assert sorted(seen) == sorted(JOBS)
    assert not tier._faults, "a method failed inside"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_J01_no_status_code_loses_a_job(
    daemon: ScriptedDaemon,
    make_engine: Callable[..., Engine],
    method: str,
    code: grpc.StatusCode,
) -> None:
    engine = make_engine()
    daemon.fail(method, code, "x" * 5000, times=2)
    use_all_methods(engine)


def mutations() -> Iterator[Any]:
    """Ways in which an answer can be wrong: (method, change)."""
    for method in METHODS:
        yield pytest.param(method, lambda reply: reply.Clear(), id=f"{method}-empty")
        yield pytest.param(
            method, lambda reply: setattr(reply, "boot_id", "other"), id=f"{method}-boot-id"
        )
    for method in ("Store", "Load"):
        for name, values in {"none": [], "many": [1] * 50, "odd": [99], "zero": [0]}.items():

            def admit(reply: Any, values: list[int] = values) -> None:
                reply.admissions[:] = values

            yield pytest.param(method, admit, id=f"{method}-{name}-admissions")
    for name, groups in {"none": [], "many": [[1]] * 9, "odd": [[77]], "long": [[1] * 99]}.items():

        def judge(reply: Any, groups: list[list[int]] = groups) -> None:
            del reply.groups[:]
            reply.groups.extend(offload_pb2.LookupVerdicts(verdicts=each) for each in groups)

        yield pytest.param("Lookup", judge, id=f"Lookup-{name}-verdicts")


def poll_mutations() -> Iterator[Any]:
    """Ways in which the answer of a Poll can be wrong: (method, change)."""

    def each_result(change: Callable[[Any], object]) -> Callable[[Any], None]:
        def apply(reply: Any) -> None:
            for result in reply.results:
                change(result)

        return apply

    changes: dict[str, Callable[[Any], object]] = {
        "unknown-job": lambda result: setattr(result, "job_id", 1 << 60),
        "job-zero": lambda result: setattr(result, "job_id", 0),
        "far-seq": lambda result: setattr(result, "seq", 1 << 60),
        "seq-zero": lambda result: setattr(result, "seq", 0),
        "other-kind": lambda result: setattr(result, "kind", 3 - result.kind),
        "odd-kind": lambda result: setattr(result, "kind", 55),
        "odd-outcome": lambda result: result.outcomes.__setitem__(slice(None), [99]),
        "no-outcome": lambda result: result.outcomes.__setitem__(slice(None), []),
        "many-outcomes": lambda result: result.outcomes.__setitem__(slice(None), [1] * 40),
        "huge-bytes": lambda result: setattr(result, "transferred_bytes", (1 << 64) - 1),
        "negative-time": lambda result: setattr(result.transfer_time, "seconds", -9),
    }
    for name, change in changes.items():
        yield pytest.param("Poll", each_result(change), id=f"Poll-{name}")
    yield pytest.param(
        "Poll", lambda reply: reply.results.extend(list(reply.results)), id="Poll-twice"
    )
    yield pytest.param(
        "Poll", lambda reply: setattr(reply, "superseded", True), id="Poll-superseded"
    )


@pytest.mark.parametrize(("method", "change"), [*mutations(), *poll_mutations()])
def test_J01_no_answer_loses_a_job(
    daemon: ScriptedDaemon,
    make_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    change: Callable[[Any], object],
) -> None:
    engine = make_engine()
    original = getattr(daemon, method)
    left = [2]

    def wrong(request: Any, context: Any) -> Any:
        reply = original(request, context)
        if left[0] and (method != "Poll" or reply.results):
            left[0] -= 1
            change(reply)
        return reply

    daemon.stop_grpc()
    monkeypatch.setattr(daemon, method, wrong)
    daemon.start_grpc()
    use_all_methods(engine)
