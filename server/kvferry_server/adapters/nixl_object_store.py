"""The object store `s3://bucket/prefix`, over NIXL's OBJ plugin.

Owns: generations of agents, the NIXL side of the preflight, and the S3 half of a chunk's
procedure. boto3 stays outside: the preflight and the answers to what NIXL can't tell are passed in.
Imports core and the adapters `nixl_*`, `integrity` and `s3_types`.

A generation is everything that was made from one dialect and one set of credentials: transfer
agents with a driver each, probe agents, and the diagnosis. NIXL can't change a backend's keys, so
a preflight that settles on something new makes a new generation; the old one finishes its
transfers and is destroyed. At most `_MAX_RETIRING` old ones exist at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from kvferry_server.core.ports import Preflight
from kvferry_server.core.types import JobKind, Presence, TransferStatus

from .integrity import Integrity
from .nixl_diagnosis import Diagnosis
from .nixl_driver import DriverPool, TransferDriver, move_and_wait
from .nixl_library import REQUESTS_PER_AGENT, NixlAgent, NixlFault, require_plugin
from .nixl_prober import Prober
from .nixl_steps import Move, Steps, ask, move
from .s3_types import (
    Credentials,
    Dialect,
    PreflightResult,
    RoundTrip,
    RoundTripFailed,
    S3Inquiry,
    S3Settings,
)

_MAX_RETIRING = 2
_QUESTION_THREADS = 8
_PROBE_THREADS = 8

_logger = logging.getLogger(__name__)


class _Generation:
    """Agents made from one dialect and one set of credentials.

    Raises:
        NixlFault: an agent can't be made.
    """

    def __init__(
        self,
        make_agent: Callable[[], NixlAgent],
        inquiry: S3Inquiry,
        settings: S3Settings,
        questions: ThreadPoolExecutor,
        agents: int,
        probe_agents: int,
    ) -> None:
        self._settings = settings
        self._diagnosis = Diagnosis(settings, make_agent(), inquiry)
        self._pool = DriverPool(
            [
                TransferDriver(
                    make_agent(),
                    questions,
                    capacity=REQUESTS_PER_AGENT,
                    name=f"kvferry-s3-{number}",
                )
                for number in range(agents)
            ]
        )
        self._prober = Prober(
            [make_agent() for _ in range(probe_agents)], _PROBE_THREADS, self._diagnosis.reachable
        )
        self.submit = self._pool.submit

    exact_size = False

    def write(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Part of `ChunkMover`."""
        if (yield from move(JobKind.STORE, buffer, self._settings.object_key(name))):
            return TransferStatus.OK
        return (yield from ask(partial(self._diagnosis.of_store, name)))

    def read(self, name: str, buffer: memoryview) -> Steps[TransferStatus]:
        """Part of `ChunkMover`."""
        if (yield from move(JobKind.LOAD, buffer, self._settings.object_key(name))):
            return TransferStatus.OK
        return (yield from ask(partial(self._diagnosis.of_load, name, buffer.nbytes)))

    def size(self, name: str) -> Steps[int | None]:
        """Part of `ChunkMover`."""
        return (yield from ask(partial(self._diagnosis.size_of, name)))

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        """See `ObjectStore.probe`."""
        self._prober.probe([self._settings.object_key(name) for name in names], done)

    def close(self) -> None:
        """Blocking: wait for transfers and probes, then destroy the agents."""
        self._pool.close()
        self._prober.close()
        self._diagnosis.close()


class S3ObjectStore:
    """`ObjectStore` on an S3 bucket.

    Args:
        settings: where the bucket is.
        preflight: tries the store with the round trip that it is given and chooses dialect and
            credentials; blocking.
        inquiry: makes what answers the questions that NIXL can't, for the chosen settings.
        integrity: what is done around each transfer.
        agents: NIXL agents for transfers; each runs 25 chunks at once.
        probe_agents: NIXL agents for lookups.

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
        agents: int = 2,
        probe_agents: int = 2,
    ) -> None:
        require_plugin("OBJ")
        self._settings = settings
        self._try_store = preflight
        self._inquiry = inquiry
        self._integrity = integrity
        self._agents = agents
        self._probe_agents = probe_agents
        self._questions = ThreadPoolExecutor(_QUESTION_THREADS, "kvferry-s3-question")
        self._preflight_lock = threading.Lock()
        self._lock = threading.Lock()
        self._generation: _Generation | None = None
        self._chosen: tuple[Dialect, Credentials] | None = None
        self._retiring: list[threading.Thread] = []
        self._closed = False

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
        with self._lock:
            generation = self._generation
            if generation is not None:
                run = self._integrity.store if kind is JobKind.STORE else self._integrity.load
                generation.submit(run(generation, name, buffer), done)
                return
        done(TransferStatus.UNAVAILABLE)

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        """See `ObjectStore.probe`."""
        if not names:
            done(())
            return
        with self._lock:
            generation = self._generation
            if generation is not None:
                generation.probe(names, done)
                return
        done(None)

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
            return result.report

    def close(self) -> None:
        """See `ObjectStore.close`."""
        with self._preflight_lock:
            self._replace(None)
            with self._lock:
                self._closed = True
            for thread in self._retiring:
                thread.join()
        self._questions.shutdown()

    def _settle(self, dialect: Dialect, credentials: Credentials) -> None:
        if self._closed or self._chosen == (dialect, credentials):
            return
        generation = _Generation(
            partial(self._make_agent, dialect, credentials),
            self._inquiry(dialect, credentials),
            self._settings,
            self._questions,
            self._agents,
            self._probe_agents,
        )
        self._chosen = (dialect, credentials)
        self._replace(generation)

    def _replace(self, generation: _Generation | None) -> None:
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


def backend_params(
    settings: S3Settings, dialect: Dialect, credentials: Credentials
) -> dict[str, str]:
    """Settings of a backend of the OBJ plugin, secrets included."""
    params = {
        "bucket": settings.bucket,
        "region": settings.region,
        "access_key": credentials.access_key,
        "secret_key": credentials.secret_key,
        "use_virtual_addressing": "true" if dialect.addressing == "virtual" else "false",
        "req_checksum": dialect.checksum,
        "resp_checksum": dialect.checksum,
        "num_threads": str(REQUESTS_PER_AGENT),
    }
    if credentials.session_token:
        params["session_token"] = credentials.session_token
    if settings.endpoint_url:
        params["endpoint_override"] = settings.endpoint_url
        params["scheme"] = settings.endpoint_url.partition("://")[0]
    if settings.ca_bundle:
        params["ca_bundle"] = settings.ca_bundle
    return params
