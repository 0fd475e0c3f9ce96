"""What the preflight tests share: clean AWS variables, the real round trip by NIXL, servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
from kvferry_server.adapters.nixl_object_store import S3ObjectStore
from kvferry_server.adapters.s3_credentials import (
    Resolved,
    resolve_credentials,
    settings_from_environment,
)
from kvferry_server.adapters.s3_inspect import S3Inspector
from kvferry_server.adapters.s3_preflight import S3Preflight
from kvferry_server.adapters.s3_types import Credentials, PreflightResult, RoundTrip, S3Settings
from tests.support.fault_server import FaultServer
from tests.support.s3_servers import Moto, S3Server, started

Preflighter = Callable[..., PreflightResult]


@pytest.fixture(autouse=True)
def clean_aws(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """No AWS variable or file of the machine is seen."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


@pytest.fixture
def fault_server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="session")
def localbucket() -> Iterator[S3Server]:
    with started("localbucket") as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with started("moto") as server:
        yield server


@pytest.fixture(scope="session")
def strict_moto() -> Iterator[S3Server]:
    """A moto that checks signatures and IAM rights; it may list, get and delete, but not put."""
    server = Moto()
    try:
        server.start()
        server.require_keys("s3:ListBucket", "s3:GetObject", "s3:DeleteObject")
        yield server
    finally:
        server.close()


@pytest.fixture
def preflight(monkeypatch: pytest.MonkeyPatch) -> Preflighter:
    """Runs the preflight of a server as the daemon does, NIXL included.

    Variables of the server may be replaced by keyword; an empty one is unset.
    """

    def run(server: S3Server | FaultServer, bucket: str = "", **variables: str) -> PreflightResult:
        for name, value in (server.environment() | variables).items():
            if value:
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.delenv(name, raising=False)
        return run_preflight(settings_from_environment(bucket or server.bucket, "some/prefix"))

    return run


def run_preflight(settings: S3Settings, *keys: str) -> PreflightResult:
    """One preflight with the store's own round trip; the environment's keys unless given."""
    resolve = (lambda: Resolved(Credentials(*keys), "the test")) if keys else resolve_credentials
    results: list[PreflightResult] = []

    def run(round_trip: RoundTrip) -> PreflightResult:
        results.append(S3Preflight(settings, round_trip, resolve).run())
        return results[-1]

    with_store(settings, run)
    return results[0]


def with_store(settings: S3Settings, preflight: Callable[[RoundTrip], PreflightResult]) -> None:
    """Let the real store, NIXL included, do one preflight."""
    store = S3ObjectStore(
        settings,
        preflight=preflight,
        inquiry=lambda dialect, credentials: S3Inspector(settings, dialect, credentials),
        integrity=Integrity(ChecksumCatalog()),
        agents=1,
        probe_agents=1,
    )
    try:
        store.preflight()
    finally:
        store.close()
