"""Existence queries on NIXL agents of their own, so that a lookup never waits behind a transfer.

Owns: the probe threads, how a call is cut into queries, and what a failing query means. Imports
core and other `nixl_*` adapters.

NIXL fails a whole query when one of its keys fails and does not say which. So a failing query is
repeated key by key; before that the store is asked for one made-up key, and if that can't be
reached either, the call ends at once instead of failing slowly for each key. Whatever the store
does, a call asks nothing more after `_LONGEST_CALL_SECONDS`; what is not known then is UNKNOWN.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from kvferry_server.core.types import Presence

from .nixl_library import NixlAgent, NixlFault, QueryFailed

ProbeDone = Callable[[Sequence[Presence] | None], None]

_KEYS_PER_QUERY = 13
"""Half of what an agent runs at once, for the two threads that an agent has."""
_THREADS_PER_AGENT = 2
_LONGEST_CALL_SECONDS = 20.0
"""Nobody waits longer for a lookup, and a call that never ended would end the daemon."""

_logger = logging.getLogger(__name__)


class _Call:
    """One `probe`: its answers so far. Changed under the prober's lock."""

    def __init__(self, keys: Sequence[str], done: ProbeDone) -> None:
        self.keys = tuple(keys)
        self.done = done
        self.answers: list[Presence] = [Presence.UNKNOWN] * len(self.keys)
        self.queries_left = 0
        self.until = time.monotonic() + _LONGEST_CALL_SECONDS
        self.reached = False
        """The store was found reachable after a query of this call had failed."""
        self.given_up = False


class Prober:
    """Answers existence queries on its own threads and agents; more are made when queries wait.

    Args:
        make_agent: makes one; from then on it is this prober's and closed with it.
        most_agents: at least one.
        reachable: blocking; whether the store answers anything at all, asked when a query failed.
    """

    def __init__(
        self,
        make_agent: Callable[[], NixlAgent],
        most_agents: int,
        reachable: Callable[[], bool],
    ) -> None:
        self._make_agent = make_agent
        self._most_agents = most_agents
        self._agents = [make_agent()]
        self._reachable = reachable
        self._wake = threading.Condition()
        self._queue: deque[tuple[_Call, range]] = deque()
        self._idle = 0
        self._growing = False
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._start_threads(self._agents[0])

    def probe(self, keys: Sequence[str], done: ProbeDone) -> None:
        """Ask for at least one object by its key in the bucket; see `ObjectStore.probe`."""
        call = _Call(keys, done)
        with self._wake:
            self._push(call, range(len(call.keys)), _KEYS_PER_QUERY)

    def close(self) -> None:
        """Blocking: answer what was asked, then destroy the agents."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        while self._threads:
            self._threads.pop().join()
        for agent in self._agents:
            agent.close()

    def _push(self, call: _Call, keys: range, keys_per_query: int) -> None:
        for start in range(keys.start, keys.stop, keys_per_query):
            self._queue.append((call, range(start, min(start + keys_per_query, keys.stop))))
            call.queries_left += 1
        self._wake.notify(min(len(self._queue), self._idle))
        if len(self._queue) > self._idle and not self._growing and not self._closing:
            self._growing = len(self._agents) < self._most_agents
            if self._growing:
                self._start_thread(self._grow)

    def _grow(self) -> None:
        """Add agents for as long as queries wait for one."""
        while True:
            with self._wake:
                enough = len(self._agents) >= self._most_agents or self._closing
                if enough or len(self._queue) <= self._idle:
                    self._growing = False
                    return
            try:
                agent = self._make_agent()
            except NixlFault as fault:
                _logger.warning("no further agent for lookups: %s", fault)
                with self._wake:
                    self._most_agents = len(self._agents)
                continue
            with self._wake:
                self._agents.append(agent)
                self._start_threads(agent)

    def _start_threads(self, agent: NixlAgent) -> None:
        for _ in range(_THREADS_PER_AGENT):
            self._start_thread(partial(self._run, agent))

    def _start_thread(self, target: Callable[[], None]) -> None:
        name = f"kvferry-probe-{len(self._threads)}"
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, agent: NixlAgent) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._idle += 1
                    self._wake.wait()
                    self._idle -= 1
                if not self._queue:
                    return
                call, keys = self._queue.popleft()
            if not call.given_up and time.monotonic() < call.until:
                self._query(agent, call, keys)
            with self._wake:
                call.queries_left -= 1
                finished = call.queries_left == 0
            if finished:
                self._complete(call)

    def _query(self, agent: NixlAgent, call: _Call, keys: range) -> None:
        try:
            found = agent.present([call.keys[index] for index in keys])
        except QueryFailed:
            self._failed(call, keys)
            return
        for index, present in zip(keys, found, strict=True):
            call.answers[index] = Presence.PRESENT if present else Presence.ABSENT

    def _failed(self, call: _Call, keys: range) -> None:
        if not call.reached:
            try:
                reached = self._reachable()
            except Exception:  # the thread's boundary: no call may end it
                _logger.exception("could not find out whether the store is reachable")
                reached = False
            with self._wake:
                call.reached |= reached
                call.given_up |= not reached
        if len(keys) > 1 and not call.given_up:
            with self._wake:
                self._push(call, keys, 1)

    def _complete(self, call: _Call) -> None:
        known = any(answer is not Presence.UNKNOWN for answer in call.answers)
        try:
            call.done(call.answers if known or not call.given_up else None)
        except Exception:
            _logger.exception("the receiver of a probe's answers failed")
