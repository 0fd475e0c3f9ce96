"""Agents made from one dialect and one set of credentials, and the S3 half of a chunk's procedure.

Owns: the backend's settings, and what is asked when a transfer or query failed. Imports core and
the adapters `nixl_*` and `s3_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kvferry_server.core.types import JobKind, Presence, TransferStatus

from .nixl_diagnosis import Diagnosis
from .nixl_driver import DriverPool, TransferDriver
from .nixl_library import REQUESTS_PER_AGENT, NixlAgent
from .nixl_prober import Prober
from .nixl_steps import Steps, ask, move
from .s3_types import Credentials, Dialect, S3Inquiry, S3Settings
from .stored_checksums import ObjectFacts


class Generation:
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
            agents,
            lambda number, waiting: TransferDriver(
                make_agent(),
                questions,
                capacity=REQUESTS_PER_AGENT,
                name=f"kvferry-s3-{number}",
                waiting=waiting,
            ),
        )
        self._prober = Prober(make_agent, probe_agents, self._diagnosis.worth_asking)
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

    def facts(self, name: str) -> Steps[ObjectFacts | None]:
        """Part of `ChunkMover`."""
        return (yield from ask(partial(self._diagnosis.facts_of, name)))

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        """See `ObjectStore.probe`."""
        self._prober.probe([self._settings.object_key(name) for name in names], done)

    @property
    def keys_refused(self) -> bool:
        """Whether the store was found to refuse this generation's keys."""
        return self._diagnosis.keys_refused

    def check_keys(self) -> bool:
        """Blocking: ask the store anew; True unless it refuses the keys."""
        return self._diagnosis.check_keys()

    def close(self) -> None:
        """Blocking: wait for transfers and probes, then destroy the agents."""
        self._pool.close()
        self._prober.close()
        self._diagnosis.close()


def backend_params(
    settings: S3Settings, dialect: Dialect, credentials: Credentials
) -> dict[str, str]:
    """Settings of a backend of the OBJ plugin, secrets included."""
    params = {
        "bucket": settings.bucket,
        "region": settings.region,
        "access_key": credentials.access_key.reveal(),
        "secret_key": credentials.secret_key.reveal(),
        "use_virtual_addressing": "true" if dialect.addressing == "virtual" else "false",
        "req_checksum": dialect.checksum,
        "resp_checksum": dialect.checksum,
        "num_threads": str(REQUESTS_PER_AGENT),
    }
    if credentials.session_token:
        params["session_token"] = credentials.session_token.reveal()
    if settings.endpoint_url:
        params["endpoint_override"] = settings.endpoint_url
        params["scheme"] = settings.endpoint_url.partition("://")[0]
    if settings.ca_bundle:
        params["ca_bundle"] = settings.ca_bundle
    return params
