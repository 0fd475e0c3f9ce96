"""Drives the engine: events in, effects carried out through the ports.

Threading: everything runs on the event loop's thread, but for `done` callbacks of the object
store, which only append to an inbox and wake the loop once per batch.
Failure: a refused request raises to its caller and changes nothing. Anything unexpected while
effects are carried out ends the process: the engine would wait for what never started.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from kvferry_server.core import effects, events
from kvferry_server.core.effects import BreakerChanged, Effect, JobFinished, PollReply
from kvferry_server.core.engine import Engine
from kvferry_server.core.errors import FailedPrecondition
from kvferry_server.core.events import Event, ProbeFinished, TransferFinished
from kvferry_server.core.naming import object_name
from kvferry_server.core.ports import Clock, ObjectStore, Region
from kvferry_server.core.telemetry import SILENCE, Answer, Telemetry, Verb
from kvferry_server.core.types import (
    Admission,
    JobKind,
    JobSpec,
    LookupGroup,
    Presence,
    SessionSpec,
    TransferStatus,
)

__all__ = ["Runner"]

_log = logging.getLogger(__name__)
_Reply = TypeVar("_Reply")
_PROBE_ANSWERS = {
    Presence.PRESENT: Answer.OK,
    Presence.ABSENT: Answer.NOT_FOUND,
    Presence.UNKNOWN: Answer.FAILED,
}


class Runner:
    """Owns the engine, the clock's timer, the running transfers' views and open questions.

    Args:
        abort: ends the process at once; returns only in tests.
        observe: gets what is meant for logs.
        telemetry: gets durations and the requests of probes.
    """

    def __init__(
        self,
        engine: Engine,
        store: ObjectStore,
        clock: Clock,
        abort: Callable[[str], object],
        observe: Callable[[JobFinished | BreakerChanged], None],
        telemetry: Telemetry = SILENCE,
    ) -> None:
        self.engine = engine
        self._store = store
        self._clock = clock
        self._abort = abort
        self._observe = observe
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._questions: dict[int, asyncio.Future[object]] = {}
        self._sessions: dict[str, tuple[Region, Callable[[], None]]] = {}
        self._running: dict[int, memoryview | None] = {}
        """Transfers that have not ended, with their view of the slot, if there is one."""
        self._inbox: deque[TransferFinished | ProbeFinished] = deque()
        self._wake_pending = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._stepped = asyncio.Event()
        self._closed = False

    def now(self) -> float:
        """Monotonic seconds, in the engine's clock."""
        return self._clock.monotonic()

    def send(self, event: Event) -> list[Effect]:
        """Give the engine an event and carry out what it asks for.

        Raises:
            KvferryError: the request is refused; nothing changed.
        """
        done = self._step(event)
        self._schedule()
        return done

    def open_session(self, spec: SessionSpec, region: Region, on_quiet: Callable[[], None]) -> None:
        """Open a session; `on_quiet` is called once nothing touches the region any more.

        Raises:
            Unavailable: the daemon is stopping.
        """
        self.send(events.OpenSession(spec))
        self._sessions[spec.session_id] = (region, on_quiet)

    def end_session(self, session_id: str) -> None:
        """Close a session unless it is quiet already. May be repeated."""
        if session_id in self._sessions:
            self.send(events.CloseSession(session_id))

    def submit(
        self, session_id: str, kind: JobKind, jobs: tuple[JobSpec, ...]
    ) -> tuple[Admission, ...]:
        """Admit jobs as a whole.

        Raises:
            KvferryError: refused as a whole.
        """
        done = self.send(events.SubmitJobs(session_id, kind, jobs))
        reply = next(each for each in done if isinstance(each, effects.SubmitReply))
        return reply.admissions

    async def lookup(
        self, session_id: str, groups: tuple[LookupGroup, ...], wait_seconds: float
    ) -> tuple[tuple[Presence, ...], ...]:
        """Verdicts, after `wait_seconds` at the latest.

        Raises:
            KvferryError: refused.
        """
        number = next(self._ids)
        event = events.StartLookup(number, session_id, groups, self.now() + wait_seconds)
        reply = await self._ask(number, event, events.CancelLookup(number), effects.LookupReply)
        return reply.verdicts

    async def poll(self, session_id: str, ack_seq: int, wait_seconds: float) -> PollReply:
        """Results above `ack_seq`, after `wait_seconds` at the latest.

        Raises:
            KvferryError: refused.
        """
        number = next(self._ids)
        event = events.StartPoll(number, session_id, ack_seq, self.now() + wait_seconds)
        return await self._ask(number, event, events.CancelPoll(number), PollReply)

    async def drain(self, session_id: str, wait_seconds: float) -> int:
        """Cancel what is queued; jobs still running after `wait_seconds` at the latest.

        Raises:
            KvferryError: refused.
        """
        number = next(self._ids)
        event = events.StartDrain(number, session_id, self.now() + wait_seconds)
        reply = await self._ask(number, event, events.CancelDrain(number), effects.DrainReply)
        return reply.running_jobs

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the engine holds; looked at after each step."""
        while not condition():
            self._stepped.clear()
            await self._stepped.wait()

    def close(self) -> None:
        """Stop the timer and drop what late probes bring."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def _ask(self, number: int, start: Event, cancel: Event, kind: type[_Reply]) -> _Reply:
        future: asyncio.Future[object] = self._loop.create_future()
        self._questions[number] = future
        try:
            self.send(start)
            reply = await future
        except asyncio.CancelledError:
            self.send(cancel)
            raise
        finally:
            del self._questions[number]
        if not isinstance(reply, kind):
            raise TypeError(f"reply {type(reply).__name__} to a question for {kind.__name__}")
        return reply

    def _answer(self, number: int, reply: object) -> None:
        future = self._questions.get(number)
        if future is not None and not future.done():
            future.set_result(reply)

    def _step(self, *together: Event) -> list[Effect]:
        done = self.engine.step_all(together, self.now())
        try:
            for effect in done:
                self._carry_out(effect)
        except BaseException as error:
            self._abort(f"an effect could not be carried out: {error!r}")
            raise
        self._stepped.set()
        return done

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.StartTransfer():
                self._start_transfer(effect)
            case effects.StartProbe():
                self._start_probe(effect)
            case effects.SubmitReply():
                pass
            case effects.LookupReply():
                self._answer(effect.lookup_id, effect)
            case effects.PollReply():
                self._answer(effect.poll_id, effect)
            case effects.DrainReply():
                self._answer(effect.drain_id, effect)
            case effects.SessionQuiet():
                _region, on_quiet = self._sessions.pop(effect.session_id)
                on_quiet()
            case effects.JobFinished() | effects.BreakerChanged():
                self._observe(effect)
            case effects.Abort():
                self._abort(effect.reason)

    def _start_transfer(self, effect: effects.StartTransfer) -> None:
        number = effect.transfer_id
        region, _on_quiet = self._sessions[effect.session_id]
        try:
            view = region.slot(effect.slot)
        except FailedPrecondition as error:
            _log.error("session %s: %s", effect.session_id, error.message)
            self._running[number] = None
            self._post(TransferFinished(number, TransferStatus.INTERNAL))
            return
        self._running[number] = view
        began = self.now()
        if effect.attempt == 1:
            self._telemetry.queue_waited(effect.kind, began - effect.accepted_at)

        def done(status: TransferStatus) -> None:
            self._post(TransferFinished(number, status))
            self._telemetry.transfer_ended(effect.kind, self.now() - began)

        self._store.transfer(effect.kind, object_name(effect.ref), view, done)

    def _start_probe(self, effect: effects.StartProbe) -> None:
        number, count = effect.probe_id, len(effect.refs)
        began = self.now()

        def done(verdicts: Sequence[Presence] | None) -> None:
            known = (Presence.UNKNOWN,) * count if verdicts is None else tuple(verdicts)
            self._post(ProbeFinished(number, known, failed=verdicts is None))
            self._telemetry.probe_ended(self.now() - began)
            for verdict, each in Counter(known).items():
                self._telemetry.requests_ended(Verb.HEAD, _PROBE_ANSWERS[verdict], each)

        self._store.probe([object_name(ref) for ref in effect.refs], done)

    def _post(self, event: TransferFinished | ProbeFinished) -> None:
        """From any thread: let the loop take in an event soon."""
        self._inbox.append(event)
        if self._wake_pending or self._closed:
            return
        self._wake_pending = True
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._take_in)

    def _take_in(self) -> None:
        self._wake_pending = False
        try:
            while self._inbox and not self._closed:
                arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
                self._step(*(each for each in arrived if self._ends(each)))
            self._schedule()
        except BaseException as error:
            self._abort(f"the end of a transfer or probe could not be taken in: {error!r}")
            raise

    def _ends(self, event: TransferFinished | ProbeFinished) -> bool:
        """Release a transfer's view; False for a repeated end, which no object store may report."""
        if isinstance(event, ProbeFinished):
            return True
        if event.transfer_id not in self._running:
            _log.error("transfer %d ended twice: %s", event.transfer_id, event.status.name)
            return False
        view = self._running.pop(event.transfer_id)
        if view is not None:
            view.release()
        return True

    def _schedule(self) -> None:
        """Keep one timer, at the engine's next wake-up or earlier."""
        now = self.now()
        due = self.engine.next_wakeup(now)
        if due is None or self._closed:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.send(events.Tick())
        except BaseException as error:
            self._abort(f"the engine failed on a tick: {error!r}")
            raise
