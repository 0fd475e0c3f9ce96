"""Driver threads: each owns one NIXL agent and runs the procedures of many chunks on it.

Owns: the thread, the polling and the exactly-once completion. A procedure (see `nixl_steps`) runs
on its driver's thread only, one step at a time; between two steps its chunk is either a running
NIXL transfer or a question on the executor. Imports core and other `nixl_*` adapters.

Failure model: an exception inside a procedure ends its chunk as INTERNAL; nothing is in transfer at
that time, because a procedure is only resumed after its transfer is over. A transfer that NIXL lost
track of is never reported: it may still write. The engine's hard deadline then ends the daemon.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from kvferry_server.core.types import TransferStatus

from .nixl_library import Handle, MoveState, NixlAgent, NixlFault
from .nixl_steps import Move, Procedure

Done = Callable[[TransferStatus], None]

_FIRST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.005
_PAUSE_GROWTH = 1.5

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Chunk:
    """A procedure under way."""

    procedure: Procedure
    done: Done
    started: bool = False
    handle: Handle | None = None


@dataclass(frozen=True, slots=True)
class _Resume:
    """A chunk to go on with: a new one, or one whose question is answered."""

    chunk: _Chunk
    error: BaseException | None = None


class TransferDriver:
    """Runs procedures on one agent from one thread.

    Args:
        agent: from now on this driver's; closed with it.
        questions: runs the procedures' blocking questions.
        capacity: procedures under way at once; the others wait, and their slots stay untouched.
        name: of the thread.
    """

    def __init__(self, agent: NixlAgent, questions: Executor, *, capacity: int, name: str) -> None:
        self._agent = agent
        self._questions = questions
        self._wake = threading.Condition()
        self._inbox: deque[_Resume] = deque()
        self._capacity = capacity
        self._active = 0
        self._closing = False
        self._waiting: deque[_Chunk] = deque()
        self._under_way = 0
        self._running: list[_Chunk] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Chunks submitted and not yet done, waiting ones included."""
        return self._active

    def submit(self, procedure: Procedure, done: Done) -> None:
        """Run a procedure and call `done` once, on the driver's thread, with what it returns."""
        with self._wake:
            self._active += 1
            self._inbox.append(_Resume(_Chunk(procedure, done)))
            self._wake.notify()

    def end(self) -> None:
        """Destroy the agent once every chunk is done; `join` waits for that."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def join(self) -> None:
        """Blocking: wait for what `end` began."""
        self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            with self._wake:
                if not self._inbox and not self._finished():
                    self._wake.wait(pause if self._running else None)
                resumes = list(self._inbox)
                self._inbox.clear()
                if not resumes and self._finished():
                    break
            progressed = bool(resumes)
            while resumes:
                self._resume(resumes.pop(0))
            progressed |= self._poll()
            self._start_waiting()
            pause = (
                _FIRST_PAUSE_SECONDS
                if progressed
                else min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECONDS)
            )
        self._agent.close()

    def _resume(self, resume: _Resume) -> None:
        if resume.chunk.started:
            self._advance(resume.chunk, answer=False, error=resume.error)
        else:
            self._waiting.append(resume.chunk)

    def _start_waiting(self) -> None:
        while self._waiting and self._under_way < self._capacity:
            self._under_way += 1
            self._advance(self._waiting.popleft(), answer=False)

    def _finished(self) -> bool:
        return self._closing and self._active == 0

    def _poll(self) -> bool:
        """Look at each running transfer once; whether any of them is over."""
        before = len(self._running)
        running, self._running = self._running, []
        for chunk in running:
            state = self._state(chunk)
            if state is MoveState.RUNNING:
                self._running.append(chunk)
            elif state is not None:
                self._release(chunk)
                self._advance(chunk, answer=state is MoveState.DONE)
        return len(self._running) != before

    def _state(self, chunk: _Chunk) -> MoveState | None:
        """The state of the chunk's transfer, or None if it will never be known."""
        if chunk.handle is None:
            return MoveState.FAILED
        try:
            return self._agent.state(chunk.handle)
        except NixlFault:
            _logger.exception("a transfer is lost; its slot stays occupied")
            return None

    def _release(self, chunk: _Chunk) -> None:
        if chunk.handle is not None:
            try:
                self._agent.finish(chunk.handle)
            except NixlFault:
                _logger.exception("a finished transfer was not released")
            chunk.handle = None

    def _advance(self, chunk: _Chunk, *, answer: bool, error: BaseException | None = None) -> None:
        """Resume a procedure and start what it asks for, until it waits or ends."""
        status: TransferStatus | None = None
        try:
            if error is not None:
                step = chunk.procedure.throw(error)
            elif chunk.started:
                step = chunk.procedure.send(answer)
            else:
                chunk.started = True
                step = next(chunk.procedure)
            if isinstance(step, Move):
                chunk.handle = self._agent.start(step)
                self._running.append(chunk)
            else:
                future: Future[None] = self._questions.submit(step.question)
                future.add_done_callback(lambda answered: self._answered(chunk, answered))
        except StopIteration as stop:
            status = stop.value
        except Exception:  # the thread's boundary: no chunk may end it
            _logger.exception("a transfer procedure failed")
            chunk.procedure.close()
            status = TransferStatus.INTERNAL
        if status is not None:
            self._complete(chunk.done, status)

    def _answered(self, chunk: _Chunk, answered: Future[None]) -> None:
        with self._wake:
            self._inbox.append(_Resume(chunk, answered.exception()))
            self._wake.notify()

    def _complete(self, done: Done, status: TransferStatus) -> None:
        self._under_way -= 1
        with self._wake:
            self._active -= 1
        try:
            done(status)
        except Exception:
            _logger.exception("the receiver of a transfer's end failed")


class DriverPool:
    """Several drivers; each chunk goes to the least busy one.

    Args:
        drivers: at least one.
    """

    def __init__(self, drivers: Sequence[TransferDriver]) -> None:
        self._drivers = tuple(drivers)
        self._lock = threading.Lock()

    def submit(self, procedure: Procedure, done: Done) -> None:
        """See `TransferDriver.submit`."""
        with self._lock:
            min(self._drivers, key=lambda driver: driver.active).submit(procedure, done)

    def close(self) -> None:
        """Blocking: wait until every chunk is done, then destroy the agents."""
        for driver in self._drivers:
            driver.end()
        for driver in self._drivers:
            driver.join()


def move_and_wait(agent: NixlAgent, move: Move) -> bool:
    """Blocking: run one transfer on the calling thread; True if it is done, False if it failed.

    Raises:
        NixlFault: NIXL refused it or lost track of it.
    """
    handle = agent.start(move)
    pause = _FIRST_PAUSE_SECONDS
    while (state := agent.state(handle)) is MoveState.RUNNING:
        time.sleep(pause)
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECONDS)
    agent.finish(handle)
    return state is MoveState.DONE
