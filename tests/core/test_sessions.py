"""Polls, drains, the end of sessions, pause and stop."""

import pytest

from kvferry_server.core.effects import (
    DrainReply,
    JobFinished,
    LookupReply,
    PollReply,
    SessionQuiet,
    StartTransfer,
)
from kvferry_server.core.events import (
    CancelDrain,
    CancelPoll,
    SetPaused,
    Stop,
    StoreReadiness,
)
from kvferry_server.core.types import Outcome
from kvferry_server.core.views import JobView, SessionView

from .world import LOAD, STORE, UNAVAILABLE, UNKNOWN, World, job, polled, started


def world(**settings):
    made = World(**({"max_active_chunks": 2} | settings))
    made.open()
    return made


def test_a_poll_waits_for_a_result():
    w = world()
    w.load(1, "a")
    assert w.poll(seconds=10) == []
    assert polled(w.finish("a")) == [1]


def test_a_poll_without_a_result_is_answered_at_its_deadline():
    w = world()
    w.poll(seconds=10)
    number = w.last_id
    assert w.tick(9.9) == []
    assert w.tick(0.1) == [PollReply(number, ())]
    assert w.poll(seconds=0).one(PollReply).results == ()


def test_results_come_again_until_they_are_acknowledged():
    w = world()
    for job_id in (1, 2, 3):
        w.load(job_id, "a")
        w.finish("a")
    assert polled(w.poll()) == polled(w.poll()) == [1, 2, 3]
    assert polled(w.poll(ack=2)) == [3]
    assert polled(w.poll(ack=2)) == [3]
    assert polled(w.poll(ack=1)) == [3]
    assert polled(w.poll(ack=3)) == []
    assert [r.seq for r in w.log.of(PollReply)[0].results] == [1, 2, 3]


def test_an_acknowledged_job_is_forgotten_and_an_unacknowledged_one_is_not():
    w = world()
    w.load(1, "a")
    w.load(2, "b", 1)
    w.finish("a")
    assert [view.job_id for view in w.engine.jobs()] == [1, 2]
    w.poll(ack=1)
    assert [view.job_id for view in w.engine.jobs()] == [2]


def test_one_answer_holds_a_bounded_number_of_results():
    w = World(ready=False, max_results_per_poll=3)
    w.open()
    w.submit(STORE, *(job(n, "a") for n in range(1, 8)))
    assert polled(w.poll()) == [1, 2, 3]
    assert polled(w.poll(ack=3)) == [4, 5, 6]
    assert polled(w.poll(ack=6)) == [7]


def test_a_newer_poll_supersedes_the_older_of_its_session_only():
    w = world()
    w.open("t")
    w.poll(seconds=10, session="t")
    w.poll(seconds=10)
    older = w.last_id
    assert w.poll(seconds=10) == [PollReply(older, (), superseded=True)]
    newer = w.last_id
    w.load(1, "a")
    reply = w.finish("a").one(PollReply)
    assert (reply.poll_id, reply.superseded) == (newer, False)


def test_a_cancelled_poll_takes_nothing():
    w = world()
    w.open("t")
    w.poll(seconds=10, session="t")
    w.poll(seconds=10)
    w.do(CancelPoll(w.last_id))
    w.do(CancelPoll(w.last_id))
    w.load(1, "a")
    assert not w.finish("a").of(PollReply)
    assert polled(w.poll()) == [1]


def test_G17_a_poll_brings_its_own_sessions_results_only():
    w = world()
    w.open("t")
    w.load(1, "a")
    w.load(1, "b", session="t")
    w.finish("a")
    assert polled(w.poll(session="t")) == []
    w.finish("b")
    assert polled(w.poll(session="t")) == polled(w.poll()) == [1]


def test_a_drain_cancels_what_is_queued_and_awaits_what_is_active():
    w = world()
    w.load(1, "abc")
    w.load(2, "d", 10)
    done = w.drain()
    assert not done.of(DrainReply)
    assert w.outcomes(2) == (Outcome.CANCELLED,)
    assert not w.finish("a", UNAVAILABLE).of(DrainReply)
    assert w.finish("b").one(DrainReply) == DrainReply(w.last_id, 0)
    assert w.outcomes(1) == (Outcome.UNAVAILABLE, Outcome.LOADED, Outcome.CANCELLED)


def test_a_drain_cancels_retries_that_wait():
    w = world()
    w.store(1, "a")
    w.finish("a", UNAVAILABLE)
    assert w.drain().one(DrainReply).running_jobs == 0
    assert w.outcomes(1) == (Outcome.CANCELLED,)


def test_a_drain_touches_its_own_session_only():
    w = world()
    w.open("t")
    w.load(1, "abc")
    w.load(1, "x", session="t")
    assert w.drain(session="t").one(DrainReply).running_jobs == 0
    assert w.reported("s") == []
    assert w.outcomes(1, "t") == (Outcome.CANCELLED,)


def test_a_drain_does_not_wait_for_jobs_that_came_later():
    w = world()
    w.load(1, "a")
    w.drain()
    w.load(2, "b", 1)
    assert w.finish("a").one(DrainReply).running_jobs == 0


def test_a_drain_says_at_its_deadline_how_many_jobs_still_run():
    w = world()
    w.load(1, "a")
    w.load(2, "b", 1)
    w.drain(seconds=5)
    w.finish("a")
    assert w.tick(4.9) == []
    assert w.tick(0.1) == [DrainReply(w.last_id, 1)]
    assert w.drain(seconds=0).one(DrainReply).running_jobs == 1
    assert not w.finish("b").of(DrainReply)


def test_two_drains_are_answered_each():
    w = world()
    w.load(1, "a")
    w.drain()
    w.drain()
    assert len(w.finish("a").of(DrainReply)) == 2


def test_a_cancelled_drain_gets_no_answer():
    w = world()
    w.load(1, "a")
    w.drain()
    w.do(CancelDrain(w.last_id))
    w.do(CancelDrain(w.last_id))
    assert not w.finish("a").of(DrainReply)


def test_an_idle_session_is_quiet_at_once():
    w = world()
    assert w.close() == [SessionQuiet("s")]
    assert w.engine.sessions() == []
    assert w.counters["sessions_closed"] == w.counters["sessions_opened"] == 1


def test_a_closed_session_is_quiet_once_nothing_of_it_is_active():
    w = world()
    w.load(1, "abc")
    w.store(2, "d", 10)
    done = w.close()
    assert not done.of(SessionQuiet)
    assert w.outcomes(2) == (Outcome.CANCELLED,)
    assert w.close() == []
    done = w.finish("a", UNAVAILABLE)
    assert not done.of(StartTransfer)
    assert not done.of(SessionQuiet)
    done = w.finish("b")
    assert [type(e) for e in done] == [JobFinished, SessionQuiet]


def test_a_closing_session_still_answers_polls_and_its_end_answers_the_last():
    w = world()
    w.load(1, "a")
    w.store(2, "b", 1)
    w.close()
    w.poll(seconds=10)
    done = w.finish("b")
    assert polled(done) == [2]
    w.poll(ack=1, seconds=10)
    done = w.finish("a")
    assert [type(e) for e in done] == [JobFinished, PollReply, SessionQuiet]
    assert polled(done) == [1]


def test_the_end_of_a_session_answers_a_poll_that_has_no_result():
    w = world()
    w.poll(seconds=10)
    assert [type(e) for e in w.close()] == [PollReply, SessionQuiet]


def test_the_name_of_an_ended_session_can_be_used_again():
    w = world()
    w.load(1, "a")
    w.finish("a")
    w.close()
    w.open()
    w.load(1, "a")
    w.finish("a")
    assert w.reported() == [1, 1]


def test_the_end_of_one_session_leaves_the_others_queue_alone():
    w = world(max_active_chunks=1)
    w.open("t")
    w.load(1, "a")
    w.load(2, "bc", 10)
    w.load(1, "x", session="t")
    w.close("t")
    assert started(w.finish("a")) == ["b"]


def test_stop_refuses_nothing_that_runs_and_cancels_what_is_queued():
    w = world()
    w.load(1, "abc")
    w.store(2, "x", 10)
    number, _ = w.start_lookup("l")
    w.poll(seconds=10)
    done = w.do(Stop())
    assert done.one(LookupReply).lookup_id == number
    assert w.outcomes(2) == (Outcome.CANCELLED,)
    assert w.ask("z") == [UNKNOWN]
    w.finish("a", UNAVAILABLE)
    w.finish("b")
    assert w.outcomes(1) == (Outcome.UNAVAILABLE, Outcome.LOADED, Outcome.CANCELLED)
    assert polled(w.poll(ack=1)) == [1]
    assert w.close().of(SessionQuiet)
    assert w.do(StoreReadiness(ready=True)) == []


@pytest.mark.parametrize("kind", [STORE, LOAD])
def test_a_paused_kind_is_shed_and_the_other_goes_on(kind):
    w = world(max_active_chunks=4)
    other = LOAD if kind is STORE else STORE
    w.submit(kind, job(1, "abcdefg"))
    running = len(w.running)
    w.do(SetPaused(stores=kind is STORE or None, loads=kind is LOAD or None))
    assert w.engine.paused == {kind: True, other: False}
    assert w.engine.queued[kind] == 0
    w.submit(kind, job(2, "x", 20))
    assert w.outcomes(2) == (Outcome.SHED,)
    w.submit(other, job(3, "y", 21))
    w.finish_all(UNAVAILABLE)
    moved = Outcome.UNAVAILABLE
    assert w.outcomes(1) == (moved,) * running + (Outcome.SHED,) * (7 - running)
    w.tick(10)
    w.finish("y")
    assert w.outcomes(3)[0] in {Outcome.STORED, Outcome.LOADED}
    w.do(SetPaused(stores=False, loads=False))
    assert started(w.submit(kind, job(4, "z", 22))) == ["z"]


def test_paused_loads_answer_lookups_unknown_and_paused_stores_do_not():
    w = world()
    w.do(SetPaused(stores=True))
    w.start_lookup("a")
    assert w.probing
    w.do(SetPaused(loads=True))
    assert w.ask("a") == [UNKNOWN]


def test_views_show_what_there_is():
    w = world()
    w.open("t", slots=3)
    w.load(1, "abc", 4)
    w.now += 5
    w.store(7, "x", session="t")
    w.finish("a")
    assert w.engine.jobs() == [
        JobView("s", 1, LOAD, "r1", 1000.0, 0, 2, 1),
        JobView("t", 7, STORE, "r7", 1005.0, 1, 0, 0),
    ]
    assert [view.job_id for view in w.engine.jobs("t")] == [7]
    assert len(w.engine.jobs(limit=1)) == 1
    first, second = w.engine.sessions()
    assert isinstance(first, SessionView)
    assert (first.spec.session_id, first.opened_at, first.open_jobs) == ("s", 1000.0, 1)
    assert (second.spec.slots, second.active_chunks, second.closing) == (3, 0, False)
    w.close()
    first, _ = w.engine.sessions()
    assert (first.closing, first.active_chunks) == (True, 2)
