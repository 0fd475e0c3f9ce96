"""Preflights of a store in the tests, run as the daemon runs them, NIXL included."""

from __future__ import annotations

from collections.abc import Callable

from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity
from kvferry_server.adapters.nixl_object_store import S3ObjectStore
from kvferry_server.adapters.s3_credentials import Resolved, resolve_credentials
from kvferry_server.adapters.s3_inspect import S3Inspector
from kvferry_server.adapters.s3_preflight import S3Preflight
from kvferry_server.adapters.s3_rotation import KeySource
from kvferry_server.adapters.s3_types import Credentials, PreflightResult, RoundTrip, S3Settings


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
        keys=KeySource(lambda: resolve_credentials().credentials),
        agents=1,
        probe_agents=1,
    )
    try:
        store.preflight()
    finally:
        store.close()
