"""The driver's promises under faults that NIXL does not produce on command: a scripted agent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kvferry_server.adapters.nixl_driver import DriverPool, TransferDriver
from kvferry_server.adapters.nixl_library import MoveState, NixlFault, QueryFailed
from kvferry_server.adapters.nixl_prober import Prober
from kvferry_server.adapters.nixl_steps import ask, move
from kvferry_server.core.types import JobKind, Presence, TransferStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, INTERNAL = TransferStatus.OK, TransferStatus.INTERNAL
GUARD_SECONDS = 10


class ScriptedAgent:
    """Transfers end when the test says so; counts what runs and what was released."""

    def __init__(self) -> None:
        self.states: dict[str, MoveState | NixlFault] = {}
        self.started: list[str] = []
        self.finished: list[str] = []
        self.closed = False
        self.hurry = False

    def start(self, step):
        self.started.append(step.target)
        self.states.setdefault(step.target, MoveState.RUNNING)
        return step.target

    def state(self, handle):
        if self.hurry:
            self.states[handle] = MoveState.DONE
        state = self.states[handle]
        if isinstance(state, NixlFault):
            raise state
        return state

    def finish(self, handle):
        assert self.states[handle] is not MoveState.RUNNING, "released while it runs"
        self.finished.append(handle)

    def close(self):
        self.closed = True


class Ends:
    """Collects statuses."""

    def __init__(self) -> None:
        self.all: dict[str, list[TransferStatus]] = {}
        self._changed = threading.Condition()

    def of(self, name: str):
        def done(status: TransferStatus) -> None:
            with self._changed:
                self.all.setdefault(name, []).append(status)
                self._changed.notify_all()

        return done

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, GUARD_SECONDS)


@pytest.fixture
def questions() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent()


@pytest.fixture
def driver(agent, questions) -> Iterator[TransferDriver]:
    driver = TransferDriver(agent, questions, capacity=3, name="driver-under-test")
    yield driver
    agent.hurry = True
    driver.end()
    driver.join()
    assert agent.closed


def one_move(name: str):
    done = yield from move(JobKind.LOAD, memoryview(bytearray(1)), name)
    return OK if done else TransferStatus.UNAVAILABLE


def wait_until(condition) -> None:
    end = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_no_more_than_the_capacity_is_started(driver, agent):
    ends = Ends()
    for name in "abcde":
        driver.submit(one_move(name), ends.of(name))
    wait_until(lambda: len(agent.started) == 3)
    time.sleep(0.1)
    assert agent.started == ["a", "b", "c"]
    agent.states["b"] = MoveState.DONE
    wait_until(lambda: len(agent.started) == 4)
    assert ends.all == {"b": [OK]}
    assert driver.active == 4


def test_a_failed_transfer_is_released_and_answered(driver, agent):
    ends = Ends()
    agent.states["a"] = MoveState.FAILED
    driver.submit(one_move("a"), ends.of("a"))
    ends.wait(1)
    assert ends.all == {"a": [TransferStatus.UNAVAILABLE]}
    assert agent.finished == ["a"]


def test_a_broken_procedure_ends_as_internal_and_the_others_go_on(driver, agent):
    def broken():
        yield from one_move("a")
        raise ZeroDivisionError

    agent.states["a"] = agent.states["b"] = MoveState.DONE
    ends = Ends()
    driver.submit(broken(), ends.of("a"))
    driver.submit(one_move("b"), ends.of("b"))
    ends.wait(2)
    assert ends.all == {"a": [INTERNAL], "b": [OK]}


def test_a_broken_receiver_harms_nobody_else(driver, agent):
    agent.states["a"] = agent.states["b"] = MoveState.DONE
    calls = []

    def broken(status):
        calls.append(status)
        raise ZeroDivisionError

    ends = Ends()
    driver.submit(one_move("a"), broken)
    driver.submit(one_move("b"), ends.of("b"))
    ends.wait(1)
    assert calls == [OK]


def test_a_question_runs_elsewhere_and_the_chunk_stays_active(driver, agent):
    gate = threading.Event()
    threads = []

    def question() -> int:
        threads.append(threading.current_thread().name)
        gate.wait(GUARD_SECONDS)
        return 7

    def asking():
        return OK if (yield from ask(question)) == 7 else INTERNAL

    agent.states["b"] = MoveState.DONE
    ends = Ends()
    driver.submit(asking(), ends.of("a"))
    driver.submit(one_move("b"), ends.of("b"))
    ends.wait(1)
    assert (ends.all, driver.active) == ({"b": [OK]}, 1)
    gate.set()
    ends.wait(2)
    assert ends.all["a"] == [OK]
    assert threads[0] != "driver-under-test"


def test_a_question_that_raises_raises_in_the_procedure(driver):
    def question() -> int:
        raise KeyError

    def asking():
        try:
            yield from ask(question)
        except KeyError:
            return OK
        return INTERNAL

    ends = Ends()
    driver.submit(asking(), ends.of("a"))
    ends.wait(1)
    assert ends.all == {"a": [OK]}


def test_a_lost_transfer_is_never_reported(agent, questions):
    """Nobody knows whether it still writes: the hard deadline ends the daemon, not this driver."""
    driver = TransferDriver(agent, questions, capacity=3, name="loses-one")
    agent.states["a"] = NixlFault("lost")
    agent.states["b"] = MoveState.DONE
    ends = Ends()
    driver.submit(one_move("a"), ends.of("a"))
    driver.submit(one_move("b"), ends.of("b"))
    ends.wait(1)
    time.sleep(0.1)
    assert ends.all == {"b": [OK]}
    assert agent.finished == ["b"]
    assert driver.active == 1


@pytest.fixture
def pool(questions) -> Iterator[tuple[DriverPool, list[ScriptedAgent]]]:
    agents = [ScriptedAgent(), ScriptedAgent()]
    pool = DriverPool(
        2,
        lambda number, waiting: TransferDriver(
            agents[number], questions, capacity=1, name=f"driver-{number}", waiting=waiting
        ),
    )
    yield pool, agents
    for agent in agents:
        agent.hurry = True
    pool.close()
    assert [agent.closed for agent in agents] == [True, True]


def test_chunks_that_cost_little_stay_on_one_thread(pool):
    pool, agents = pool
    for agent in agents:
        agent.hurry = True
    ends = Ends()
    for number in range(200):
        pool.submit(one_move(str(number)), ends.of(str(number)))
        ends.wait(number + 1)
    assert len(agents[0].started) > len(agents[1].started)
    assert sorted(len(statuses) for statuses in ends.all.values()) == [1] * 200


def test_a_thread_that_is_held_up_holds_up_no_other_chunk(pool):
    pool, agents = pool
    gate = threading.Event()

    def held_up():
        gate.wait(GUARD_SECONDS)
        return (yield from one_move("a"))

    agents[0].states["a"] = agents[1].states["b"] = MoveState.DONE
    ends = Ends()
    pool.submit(held_up(), ends.of("a"))
    time.sleep(0.05)
    pool.submit(one_move("b"), ends.of("b"))
    ends.wait(1)
    assert ends.all == {"b": [OK]}
    gate.set()
    ends.wait(2)
    assert (agents[0].started, agents[1].started) == (["a"], ["b"])


def test_a_chunk_waits_for_no_thread_that_runs_another(pool):
    pool, agents = pool
    ends = Ends()
    for name in "abc":
        pool.submit(one_move(name), ends.of(name))
        time.sleep(0.02)
    assert [agent.started for agent in agents] == [["a"], ["b"]]
    agents[1].states["b"] = MoveState.DONE
    wait_until(lambda: agents[1].started == ["b", "c"])
    agents[1].states["c"] = MoveState.DONE
    ends.wait(2)
    assert ends.all == {"b": [OK], "c": [OK]}


class QueryAgent:
    """Existence queries: keys called bad fail the whole query."""

    def __init__(self) -> None:
        self.queries: list[list[str]] = []
        self.closed = False

    def present(self, keys):
        self.queries.append(list(keys))
        if any(key.startswith("bad") for key in keys):
            raise QueryFailed
        return [key.startswith("there") for key in keys]

    def close(self):
        self.closed = True


def ask_prober(prober: Prober, keys: list[str]):
    answers = []
    ended = threading.Event()
    prober.probe(keys, lambda answer: (answers.append(answer), ended.set()))
    assert ended.wait(GUARD_SECONDS)
    return answers[0]


def test_an_unreachable_store_is_asked_no_key_by_key_questions():
    agent = QueryAgent()
    prober = Prober(lambda: agent, 1, lambda: False)
    assert ask_prober(prober, [f"bad{n}" for n in range(8)]) is None
    prober.close()
    assert len(agent.queries) == 1
    assert agent.closed


def test_a_failing_reachability_check_counts_as_unreachable():
    def broken() -> bool:
        raise ZeroDivisionError

    prober = Prober(QueryAgent, 1, broken)
    assert ask_prober(prober, ["bad"]) is None
    assert ask_prober(prober, ["there"]) == [Presence.PRESENT]
    prober.close()


def test_a_broken_receiver_of_answers_harms_nobody_else():
    prober = Prober(QueryAgent, 1, lambda: True)

    def broken(_):
        raise ZeroDivisionError

    prober.probe(["there"], broken)
    wanted = [Presence.UNKNOWN, Presence.PRESENT, Presence.ABSENT]
    assert ask_prober(prober, ["bad", "there", "gone"]) == wanted
    prober.close()


def test_close_answers_what_was_asked():
    agent = QueryAgent()
    prober = Prober(lambda: agent, 1, lambda: True)
    answers = []
    for _ in range(20):
        prober.probe(["there", "bad", "gone"], answers.append)
    prober.close()
    assert answers == [[Presence.PRESENT, Presence.UNKNOWN, Presence.ABSENT]] * 20


class SlowAgent(QueryAgent):
    """Answers once the gate is open."""

    gate = threading.Event()

    def present(self, keys):
        assert self.gate.wait(GUARD_SECONDS)
        return super().present(keys)


def test_agents_are_added_while_queries_wait_and_no_more_than_allowed():
    agents: list[SlowAgent] = []
    SlowAgent.gate.clear()

    def make() -> SlowAgent:
        agents.append(SlowAgent())
        return agents[-1]

    prober = Prober(make, 3, lambda: True)
    answers = []
    prober.probe(["there"], answers.append)
    time.sleep(0.05)
    assert len(agents) == 1
    for _ in range(20):
        prober.probe(["there", "gone"], answers.append)
    wait_until(lambda: len(agents) == 3)
    time.sleep(0.05)
    SlowAgent.gate.set()
    prober.close()
    assert len(agents) == 3
    assert all(agent.queries and agent.closed for agent in agents)
    assert answers.count([Presence.PRESENT, Presence.ABSENT]) == 20


def test_what_is_asked_is_answered_if_no_further_agent_can_be_made():
    agents: list[QueryAgent] = []

    def make() -> QueryAgent:
        if agents:
            raise NixlFault
        agents.append(SlowAgent())
        return agents[0]

    SlowAgent.gate.clear()
    prober = Prober(make, 3, lambda: True)
    answers = []
    for _ in range(10):
        prober.probe(["there"], answers.append)
    time.sleep(0.05)
    SlowAgent.gate.set()
    prober.close()
    assert answers == [[Presence.PRESENT]] * 10
