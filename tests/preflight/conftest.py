"""What the preflight tests share: clean AWS variables, the real round trip by NIXL, servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from kvferry_server.adapters.s3_credentials import (
    settings_from_environment,
)
from kvferry_server.adapters.s3_types import PreflightResult
from tests.support.fault_server import FaultServer
from tests.support.preflights import run_preflight
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
