"""Driver threads: each owns one NIXL agent and runs the procedures of many chunks on it.

Owns: the thread, the polling and the exactly-once completion. A procedure (see `nixl_steps`) runs
on its driver's thread only, one step at a time; between two steps its chunk is either a running
NIXL transfer or a question on the executor. Imports core and other `nixl_*` adapters.

When to look: NIXL tells nobody that a transfer is over. The first look is shortly before the time
that transfers of this kind and size took of late, and the pause to the next one is a fixed share
of the transfer's age. So a look costs in proportion to transfers, not to the time they take.

Ends are told together, once the thread has nothing else to do or `_BURST_SECONDS` have passed.

Failure model: an exception inside a procedure ends its chunk as INTERNAL; nothing is in transfer at
that time, because a procedure is only resumed after its transfer is over. A transfer that NIXL lost
track of is never reported: it may still write. The engine's hard deadline then ends the daemon.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from kvferry_server.core.types import JobKind, TransferStatus

from .nixl_library import Handle, MoveState, NixlAgent, NixlFault
from .nixl_steps import Move, Procedure, Step

Done = Callable[[TransferStatus], None]

_BURST_SECONDS = 0.0005
"""Chunks that an awake thread takes up within this time wake no other thread."""
_COST_WEIGHT = 0.1
"""Of the newest chunk in what a chunk costs its thread."""
_SHORTEST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.02
_LATEST_FIRST_LOOK_SECONDS = 0.2
_FIRST_LOOK = 0.7
"""Of the usual duration of a transfer."""
_NEXT_LOOK = 1 / 12
"""Of the transfer's age."""
_MAX_USUAL = 64

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Chunk:
    """A procedure under way."""

    procedure: Procedure
    done: Done
    started: bool = False
    handle: Handle | None = None
    shape: tuple[JobKind, int] = (JobKind.STORE, 0)
    """Kind and size of its transfer."""
    posted_at: float = 0.0
    look_at: float = 0.0


class _Pace:
    """When to look at a transfer."""

    def __init__(self) -> None:
        self._usual: dict[tuple[JobKind, int], float] = {}

    def posted(self, chunk: _Chunk, now: float) -> None:
        """Plan the first look."""
        pause = self._usual.get(chunk.shape, 0.0) * _FIRST_LOOK
        chunk.posted_at = now
        chunk.look_at = now + min(max(pause, _SHORTEST_PAUSE_SECONDS), _LATEST_FIRST_LOOK_SECONDS)

    def seen_running(self, chunk: _Chunk, now: float) -> None:
        """Plan the next look."""
        pause = (now - chunk.posted_at) * _NEXT_LOOK
        chunk.look_at = now + min(max(pause, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)

    def seen_over(self, chunk: _Chunk, now: float) -> None:
        """Learn how long such a transfer takes; faster ones count more."""
        took = now - chunk.posted_at
        usual = self._usual.get(chunk.shape)
        if usual is None:
            if len(self._usual) >= _MAX_USUAL:
                self._usual.clear()
            self._usual[chunk.shape] = took
        else:
            self._usual[chunk.shape] = usual + (took - usual) * (0.5 if took < usual else 0.2)


class TransferDriver:
    """Runs procedures on one agent from one thread.

    Args:
        agent: from now on this driver's; closed with it.
        questions: runs the procedures' blocking questions.
        capacity: procedures under way at once; the others wait, and their slots stay untouched.
            With 1, a chunk occupies the thread from its start to its end.
        name: of the thread.
        waiting: the queue of new chunks; several drivers may take from one.
    """

    def __init__(
        self,
        agent: NixlAgent,
        questions: Executor,
        *,
        capacity: int,
        name: str,
        waiting: deque[_Chunk] | None = None,
    ) -> None:
        self._agent = agent
        self._questions = questions
        self._capacity = capacity
        self._waiting: deque[_Chunk] = deque() if waiting is None else waiting
        self._wake = threading.Condition()
        self._answers: deque[tuple[_Chunk, BaseException | None]] = deque()
        self._closing = False
        self._asleep = False
        self._busy_since = 0.0
        self._cost = _BURST_SECONDS
        """What a chunk costs the thread, in seconds."""
        self._pace = _Pace()
        self._under_way = 0
        self._running: list[_Chunk] = []
        self._ended: list[tuple[Done, TransferStatus]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Chunks submitted and not yet done, waiting ones included."""
        return len(self._waiting) + self._under_way

    def submit(self, procedure: Procedure, done: Done) -> None:
        """Run a procedure and call `done` once, on the driver's thread, with what it returns."""
        self._waiting.append(_Chunk(procedure, done))
        self.offer(time.monotonic())

    def offer(self, now: float) -> int:
        """Wake the thread if it sleeps; how many of the waiting chunks it takes up soon."""
        with self._wake:
            free = self._capacity - self._under_way
            if self._asleep and free > 0:
                self._asleep = False
                self._wake.notify()
            elif self._asleep or now - self._busy_since > _BURST_SECONDS:
                return 0
            soon = max(1, int(_BURST_SECONDS / self._cost))
            return soon if self._capacity == 1 else max(0, min(soon, free))

    def end(self) -> None:
        """Destroy the agent once every chunk is done; `join` waits for that."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def join(self) -> None:
        """Blocking: wait for what `end` began."""
        self._thread.join()

    def _run(self) -> None:
        while (answers := self._next()) is not None:
            for chunk, error in answers:
                self._advance(chunk, answer=False, error=error)
            self._poll()
            self._start_waiting()
            self._tell()
        self._agent.close()

    def _next(self) -> list[tuple[_Chunk, BaseException | None]] | None:
        """Sleep until there is something to do; the answered questions, or None at the end."""
        with self._wake:
            if not (self._answers or self._can_start() or self._finished()):
                pause = None
                if self._running:
                    first = min(chunk.look_at for chunk in self._running)
                    pause = max(0.0, first - time.monotonic())
                self._asleep = True
                self._wake.wait(pause)
                self._asleep = False
            if self._finished():
                return None
            answers = list(self._answers)
            self._answers.clear()
            self._busy_since = time.monotonic()
        return answers

    def _can_start(self) -> bool:
        return bool(self._waiting) and self._under_way < self._capacity

    def _finished(self) -> bool:
        return self._closing and not self._under_way and not self._waiting

    def _start_waiting(self) -> None:
        """Take up what waits: as much as may be under way, and not for too long at a time."""
        now = self._busy_since
        until = now + _BURST_SECONDS
        while self._under_way < self._capacity and now < until:
            try:
                chunk = self._waiting.popleft()
            except IndexError:  # another driver may have taken it
                return
            self._under_way += 1
            self._advance(chunk, answer=False)
            began, now = now, time.monotonic()
            self._busy_since = now
            self._cost += (now - began - self._cost) * _COST_WEIGHT

    def _poll(self) -> None:
        """Look at each running transfer whose time has come."""
        now = time.monotonic()
        running, self._running = self._running, []
        for chunk in running:
            if chunk.look_at > now + (now - chunk.posted_at) * _NEXT_LOOK / 2:
                self._running.append(chunk)
                continue
            state = self._state(chunk)
            if state is MoveState.RUNNING:
                self._running.append(chunk)
                self._pace.seen_running(chunk, now)
            elif state is not None:
                self._pace.seen_over(chunk, now)
                self._release(chunk)
                self._advance(chunk, answer=state is MoveState.DONE)

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
        """Resume a procedure and do what it asks for, until it waits or ends."""
        status: TransferStatus | None = None
        try:
            step = _resume(chunk, answer, error)
            while isinstance(step, Move):
                state = self._begin(chunk, step)
                if state is None or state is MoveState.RUNNING:
                    return
                self._release(chunk)
                step = chunk.procedure.send(state is MoveState.DONE)
            future: Future[None] = self._questions.submit(step.question)
            future.add_done_callback(lambda answered: self._answered(chunk, answered))
        except StopIteration as stop:
            status = stop.value
        except Exception:  # the thread's boundary: no chunk may end it
            _logger.exception("a transfer procedure failed")
            chunk.procedure.close()
            status = TransferStatus.INTERNAL
        if status is not None:
            self._under_way -= 1
            self._ended.append((chunk.done, status))

    def _begin(self, chunk: _Chunk, step: Move) -> MoveState | None:
        """Start a transfer and look at once: one on a page cache is over by then."""
        chunk.handle = self._agent.start(step)
        state = self._state(chunk)
        if state is MoveState.RUNNING:
            chunk.shape = (step.kind, step.buffer.nbytes)
            self._pace.posted(chunk, time.monotonic())
            self._running.append(chunk)
        return state

    def _answered(self, chunk: _Chunk, answered: Future[None]) -> None:
        with self._wake:
            self._answers.append((chunk, answered.exception()))
            self._wake.notify()

    def _tell(self) -> None:
        """Say what has ended."""
        ended, self._ended = self._ended, []
        for done, status in ended:
            try:
                done(status)
            except Exception:
                _logger.exception("the receiver of a transfer's end failed")


def _resume(chunk: _Chunk, answer: bool, error: BaseException | None) -> Step:  # noqa: FBT001
    if error is not None:
        return chunk.procedure.throw(error)
    if chunk.started:
        return chunk.procedure.send(answer)
    chunk.started = True
    return next(chunk.procedure)


class DriverPool:
    """Several drivers with one queue.

    As few threads work as the chunks need, so that a small chunk does not cost a change of threads;
    a thread that is held up counts as none.

    Args:
        count: of drivers, at least one.
        make: a driver by its number and the queue.
    """

    def __init__(self, count: int, make: Callable[[int, deque[_Chunk]], TransferDriver]) -> None:
        self._waiting: deque[_Chunk] = deque()
        self._drivers = tuple(make(number, self._waiting) for number in range(count))

    def submit(self, procedure: Procedure, done: Done) -> None:
        """See `TransferDriver.submit`."""
        self._waiting.append(_Chunk(procedure, done))
        now = time.monotonic()
        left = len(self._waiting)
        for driver in self._drivers:
            if left <= 0:
                break
            left -= driver.offer(now)

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
    began = time.monotonic()
    while (state := agent.state(handle)) is MoveState.RUNNING:
        time.sleep(
            min(
                _SHORTEST_PAUSE_SECONDS + (time.monotonic() - began) * _NEXT_LOOK,
                _LONGEST_PAUSE_SECONDS,
            )
        )
    agent.finish(handle)
    return state is MoveState.DONE
