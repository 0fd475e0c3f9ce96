from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.breaker import Breaker
from kvferry_server.core.types import BreakerState


def opened(failures=3):
    breaker = Breaker(failures, 5.0)
    for _ in range(failures):
        breaker.failure(0.0, trial=False)
    return breaker


def test_it_opens_after_consecutive_failures_only():
    breaker = Breaker(3, 5.0)
    for _ in range(2):
        breaker.failure(0.0, trial=False)
        breaker.failure(0.0, trial=False)
        assert breaker.allows(0.0)
        breaker.success()
    for _ in range(3):
        breaker.failure(0.0, trial=False)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.allows(0.0)
    assert breaker.wakeup() == 5.0


def test_after_the_cool_down_one_trial_may_run():
    breaker = opened()
    assert breaker.state(4.9) is BreakerState.OPEN
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    assert breaker.allows(5.0)
    assert breaker.begin(5.0)
    assert not breaker.allows(5.0)


def test_a_successful_trial_closes_it():
    breaker = opened()
    breaker.begin(5.0)
    breaker.success()
    assert breaker.state(5.0) is BreakerState.CLOSED
    assert breaker.wakeup() is None
    assert not breaker.begin(5.0)


def test_a_failed_trial_opens_it_for_another_cool_down():
    breaker = opened()
    breaker.begin(6.0)
    breaker.failure(7.0, trial=True)
    assert breaker.state(11.9) is BreakerState.OPEN
    assert breaker.state(12.0) is BreakerState.HALF_OPEN
    assert breaker.begin(12.0)


def test_failures_of_requests_from_before_do_not_prolong_it():
    breaker = opened()
    breaker.failure(4.0, trial=False)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    breaker.begin(5.0)
    breaker.failure(5.0, trial=False)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    assert not breaker.allows(5.0)


def test_after_a_success_the_count_starts_anew():
    breaker = opened()
    breaker.success()
    breaker.failure(1.0, trial=False)
    assert breaker.state(1.0) is BreakerState.CLOSED


def test_a_trial_that_fails_after_another_answer_closed_it_counts_as_one_failure():
    breaker = opened()
    breaker.begin(5.0)
    breaker.success()
    breaker.failure(6.0, trial=True)
    assert breaker.state(6.0) is BreakerState.CLOSED


@given(st.lists(st.sampled_from(["begin", "success", "failure", "wait"]), max_size=40))
def test_it_never_runs_two_trials_and_always_comes_back(moves):
    breaker, now, running = Breaker(2, 5.0), 0.0, []
    for move in moves:
        if move == "wait":
            now += 3.0
        elif move == "begin" and breaker.allows(now):
            running.append(breaker.begin(now))
        elif move == "success" and running:
            running.pop(0)
            breaker.success()
        elif move == "failure" and running:
            breaker.failure(now, trial=running.pop(0))
        if breaker.state(now) is not BreakerState.CLOSED:
            assert breaker.wakeup() is not None
    while running:
        breaker.failure(now, trial=running.pop(0))
    assert breaker.allows(now + 5.0)
