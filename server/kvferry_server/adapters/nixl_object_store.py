"""The object store `s3://bucket/prefix`, over NIXL's OBJ plugin.

Owns: generations of agents, the NIXL side of the preflight, and which keys are in use. boto3 stays
outside: the preflight, the keys and the answers to what NIXL can't tell are passed in. Imports core
and the adapters `nixl_*`, `integrity`, `s3_rotation` and `s3_types`.

A generation is everything that was made from one dialect and one set of credentials: transfer
agents with a driver each, probe agents, and the diagnosis. NIXL can't change a backend's keys, so
new keys, or a preflight that settles on something new, make a new generation; the old one finishes
its transfers and is destroyed. At most `_MAX_RETIRING` old ones exist at a time.

Refused keys: the first request that finds the keys of a generation refused makes all that follow
wait, and those that fail too. They start again with the next keys that the store accepts, so that
none is tried twice with a dead key; after `KeySource.wait_seconds` they end as denied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from kvferry_server.core.ports import Preflight
from kvferry_server.core.telemetry import SILENCE, Telemetry
from kvferry_server.core.types import JobKind, Presence, TransferStatus

from .integrity import Integrity
from .nixl_driver import move_and_wait
from .nixl_generation import Generation, backend_params
from .nixl_library import (
    REQUESTS_PER_AGENT,
    NixlAgent,
    NixlFault,
    name_region,
    require_plugin,
)
from .nixl_steps import Move
from .s3_rotation import KeySource, Renewed, Rotation, Waiter, Waiting
from .s3_types import (
    Credentials,
    CredentialsUnavailable,
    Dialect,
    PreflightResult,
    RoundTrip,
    RoundTripFailed,
    S3Inquiry,
    S3Settings,
)

_MAX_RETIRING = 2
_QUESTION_THREADS = 8
_NOTHING = memoryview(b"")

_logger = logging.getLogger(__name__)


class _Transfer(Waiter):
    """One chunk. Nothing of it refers to itself: its buffer must be free once it is done."""

    __slots__ = ("_begin", "_done", "buffer", "kind", "name")

    def __init__(
        self,
        begin: Callable[[_Transfer], None],
        kind: JobKind,
        name: str,
        buffer: memoryview,
        done: Callable[[TransferStatus], None],
    ) -> None:
        super().__init__()
        self._begin = begin
        self._done = done
        self.kind = kind
        self.name = name
        self.buffer = buffer

    def start(self) -> None:
        """See `Waiter.start`."""
        self._begin(self)

    def give_up(self) -> None:
        """See `Waiter.give_up`."""
        self.finish(TransferStatus.DENIED)

    def finish(self, status: TransferStatus) -> None:
        """Let go of the buffer, then tell."""
        self.buffer = _NOTHING
        self._done(status)


class _Probe(Waiter):
    """One call of `S3ObjectStore.probe`."""

    __slots__ = ("_begin", "done", "names")

    def __init__(
        self,
        begin: Callable[[_Probe], None],
        names: Sequence[str],
        done: Callable[[Sequence[Presence] | None], None],
    ) -> None:
        super().__init__()
        self._begin = begin
        self.names = names
        self.done = done

    def start(self) -> None:
        """See `Waiter.start`."""
        self._begin(self)

    def give_up(self) -> None:
        """See `Waiter.give_up`."""
        self.done([Presence.UNKNOWN] * len(self.names))


class S3ObjectStore:
    """`ObjectStore` on an S3 bucket.

    Args:
        settings: where the bucket is.
        preflight: tries the store with the round trip that it is given and chooses dialect and
            credentials; blocking.
        inquiry: makes what answers the questions that NIXL can't, for the chosen settings.
        keys: where to find the next keys when those in use expire, change or are refused.
        integrity: what is done around each transfer.
        telemetry: gets the expiry of the keys in use.
        agents: NIXL agents for transfers; each runs 25 chunks at once.
        probe_agents: most NIXL agents for lookups; made as they are needed.

    Raises:
        ConfigError: NIXL or its OBJ plugin is missing; the text says what to do.
    """

    def __init__(
        self,
        settings: S3Settings,
        *,
        preflight: Callable[[RoundTrip], PreflightResult],
        inquiry: Callable[[Dialect, Credentials], S3Inquiry],
        integrity: Integrity,
        keys: KeySource,
        telemetry: Telemetry = SILENCE,
        agents: int = 2,
        probe_agents: int = 2,
    ) -> None:
        require_plugin("OBJ")
        name_region(settings.region)
        self._settings = settings
        self._try_store = preflight
        self._inquiry = inquiry
        self._integrity = integrity
        self._keys = keys
        self._telemetry = telemetry
        self._agents = agents
        self._probe_agents = probe_agents
        self._questions = ThreadPoolExecutor(_QUESTION_THREADS, "kvferry-s3-question")
        self._preflight_lock = threading.Lock()
        self._lock = threading.Lock()
        self._generation: Generation | None = None
        self._chosen: tuple[Dialect, Credentials] | None = None
        self._retiring: list[threading.Thread] = []
        self._closed = False
        self._complaint = ""
        self._waiting = Waiting(keys.wait_seconds)
        self._rotation = Rotation(self._renew, keys.files)

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return self._settings.url

    @property
    def max_active_chunks(self) -> int:
        """25 for each transfer agent."""
        return REQUESTS_PER_AGENT * self._agents

    def transfer(
        self,
        kind: JobKind,
        name: str,
        buffer: memoryview,
        done: Callable[[TransferStatus], None],
    ) -> None:
        """See `ObjectStore.transfer`."""
        self._start_transfer(_Transfer(self._start_transfer, kind, name, buffer, done))

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        """See `ObjectStore.probe`."""
        if names:
            self._start_probe(_Probe(self._start_probe, names, done))
        else:
            done(())

    def _start_transfer(self, transfer: _Transfer) -> None:
        run = self._integrity.store if transfer.kind is JobKind.STORE else self._integrity.load
        with self._lock:
            generation = self._generation
            if generation is not None and not generation.keys_refused:
                procedure = run(generation, transfer.name, transfer.buffer)
                generation.submit(procedure, partial(self._end_transfer, transfer, generation))
                return
        if generation is None:
            transfer.finish(TransferStatus.UNAVAILABLE)
        else:
            self._wait(generation, transfer)

    def _end_transfer(
        self, transfer: _Transfer, generation: Generation, status: TransferStatus
    ) -> None:
        if status is TransferStatus.DENIED and generation.keys_refused:
            self._wait(generation, transfer)
        else:
            transfer.finish(status)

    def _start_probe(self, probe: _Probe) -> None:
        with self._lock:
            generation = self._generation
            if generation is not None and not generation.keys_refused:
                generation.probe(probe.names, partial(self._end_probe, probe, generation))
                return
        if generation is None:
            probe.done(None)
        else:
            self._wait(generation, probe)

    def _end_probe(
        self, probe: _Probe, generation: Generation, answers: Sequence[Presence] | None
    ) -> None:
        known = answers is not None and Presence.UNKNOWN not in answers
        if generation.keys_refused and not known:
            self._wait(generation, probe)
        else:
            probe.done(answers)

    def refresh_credentials(self) -> None:
        """See `ObjectStore.refresh_credentials`."""
        self._rotation.ask()

    def preflight(self) -> Preflight:
        """See `ObjectStore.preflight`.

        One that fails leaves a store that already works as it is.
        """
        with self._preflight_lock:
            result = self._try_store(self._round_trip)
            if result.dialect is not None and result.credentials is not None:
                try:
                    self._settle(result.dialect, result.credentials)
                except NixlFault as fault:
                    return replace(result.report, ready=False, problem=str(fault))
                self._waiting.start_all()
            return result.report

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._rotation.close()
        self._waiting.give_up_all()
        with self._preflight_lock:
            self._replace(None)
            with self._lock:
                self._closed = True
            for thread in self._retiring:
                thread.join()
        self._waiting.give_up_all()
        self._questions.shutdown()
        self._integrity.close()

    def _wait(self, generation: Generation, waiter: Waiter) -> None:
        """Start a request again once there are other keys than this generation's refused ones."""
        self._waiting.add(waiter)
        if self._generation is not generation:
            self._waiting.start_all()
        self._rotation.ask()

    def _renew(self) -> Renewed:
        """Blocking, on the rotation's thread: see whether there are other keys, and use them."""
        with self._preflight_lock:
            renewed = self._renewed()
            generation = self._generation
        if generation is None or not generation.keys_refused:
            self._waiting.start_all()
        else:
            self._waiting.give_up_late()
        return renewed

    def _renewed(self) -> Renewed:
        generation = self._generation
        if self._closed or self._chosen is None or generation is None:
            return Renewed(settled=True)
        dialect, used = self._chosen
        stays = Renewed(settled=False, expires_at=used.expires_at)
        try:
            found = self._keys.resolve()
        except CredentialsUnavailable as error:
            self._complain(f"credentials can't be renewed: {error}")
            return stays
        if found.same_as(used):
            settled = not generation.keys_refused or generation.check_keys()
            if not settled:
                self._complain("the store refuses the credentials, and there are no others yet")
            return Renewed(settled, used.expires_at)
        inquiry = self._inquiry(dialect, found)
        if not inquiry.check_keys():
            inquiry.close()
            self._complain("new credentials were found, which the store refuses")
            return stays
        try:
            self._settle(dialect, found, inquiry)
        except NixlFault as fault:
            self._complain(str(fault))
            return stays
        return Renewed(settled=True, expires_at=found.expires_at)

    def _complain(self, problem: str) -> None:
        """Log a problem when it begins, not each time."""
        if problem != self._complaint:
            self._complaint = problem
            _logger.warning("%s", problem)

    def _settle(
        self, dialect: Dialect, credentials: Credentials, inquiry: S3Inquiry | None = None
    ) -> None:
        if self._closed or self._in_use(dialect, credentials):
            return
        generation = Generation(
            partial(self._make_agent, dialect, credentials),
            inquiry or self._inquiry(dialect, credentials),
            self._settings,
            self._questions,
            self._agents,
            self._probe_agents,
        )
        if self._chosen is not None:
            _logger.info("new credentials or settings are in use from now on")
        self._complaint = ""
        self._replace(generation)
        self._chosen = (dialect, credentials)
        self._telemetry.credentials_expire(credentials.expires_at)
        self._rotation.watch(credentials.expires_at)

    def _in_use(self, dialect: Dialect, credentials: Credentials) -> bool:
        if self._chosen is None:
            return False
        chosen, used = self._chosen
        return chosen == dialect and used.same_as(credentials)

    def _replace(self, generation: Generation | None) -> None:
        """Retire the present generation in favour of another; may wait for older ones."""
        while len(self._retiring) >= _MAX_RETIRING:
            self._retiring.pop(0).join()
        with self._lock:
            old, self._generation = self._generation, generation
        if old is not None:
            thread = threading.Thread(target=old.close, name="kvferry-s3-retire", daemon=True)
            thread.start()
            self._retiring.append(thread)

    def _make_agent(self, dialect: Dialect, credentials: Credentials) -> NixlAgent:
        return NixlAgent("OBJ", backend_params(self._settings, dialect, credentials))

    def _round_trip(
        self, dialect: Dialect, credentials: Credentials, key: str, payload: bytes
    ) -> bool:
        """A `RoundTrip` on an agent that lives for it only."""
        try:
            agent = self._make_agent(dialect, credentials)
        except NixlFault as fault:
            raise RoundTripFailed(str(fault)) from fault
        sent = bytearray(payload)
        received = bytearray(byte ^ 0xFF for byte in payload)
        try:
            for kind, data in ((JobKind.STORE, sent), (JobKind.LOAD, received)):
                if not move_and_wait(agent, Move(kind, memoryview(data), key)):
                    verb = "writing" if kind is JobKind.STORE else "reading"
                    raise RoundTripFailed(f"{verb} an object failed ({dialect.words})")
        finally:
            agent.close()
        return received == payload
