"""Builds the daemon's adapters; nothing else in kvferry does.

Owns which adapter stands behind which port. Imports adapters, service and core. The stores'
adapters load NIXL, those of S3 boto3 too, so they are imported when they are needed.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from kvferry_server.adapters.clock import MonotonicClock
from kvferry_server.adapters.hardening import LoopWatchdog, abort, allow_descriptors, forbid_dumps
from kvferry_server.adapters.nixl_library import REQUESTS_PER_AGENT, live_handles
from kvferry_server.adapters.shm import SharedMemoryMapper
from kvferry_server.adapters.telemetry import Recorder
from kvferry_server.core.ports import ObjectStore
from kvferry_server.core.telemetry import SILENCE, Telemetry
from kvferry_server.service import server
from kvferry_server.service.settings import OFFLOAD_SOCKET

from . import logs
from .config import parse_listen
from .http_listener import HttpListener, bind
from .observer import Observer
from .options import Config
from .pages import DaemonPages
from .store_url import FileUrl, S3Url, parse_store_url

if TYPE_CHECKING:
    from kvferry_server.adapters.file_doctor import FileDoctor
    from kvferry_server.adapters.integrity import Integrity, Verify
    from kvferry_server.adapters.integrity_file import CatalogFile
    from kvferry_server.adapters.s3_doctor import S3Doctor

_log = logging.getLogger(__name__)

MAX_FILE_THREADS = 8
"""More threads make a file store no faster, and nor do many more than there are cores."""
KEY_WAIT_SECONDS = 10.0
"""How long a chunk that was refused for its keys waits for others; far from the hard deadline."""


def run_daemon(config: Config, *, debug_attach_by_name: bool) -> NoReturn:
    """Serve until a signal, then end the process with status 0.

    Raises:
        ConfigError: an address, a socket, the store's URL or the NIXL installation is wrong.
        FailedPrecondition: another daemon has the socket directory.
    """
    settings = config.server_settings(debug_attach_by_name=debug_attach_by_name)
    clock = MonotonicClock()
    observer = Observer(clock)
    recorder = Recorder(live_handles)
    watchdog = LoopWatchdog(config.timeouts.hard_deadline_seconds)
    address = parse_listen(config.http.listen)
    listener = None

    def beat() -> None:
        watchdog.beat()
        observer.flush()
        logs.flush()

    def make_ports() -> server.Ports:
        nonlocal listener
        listener = bind(*address) if address else None
        return server.Ports(
            store=build_store(config, recorder),
            regions=SharedMemoryMapper(),
            clock=clock,
            abort=abort,
            heartbeat=beat,
            observe=observer.observe,
            telemetry=recorder,
        )

    def on_started(daemon: server.Daemon) -> None:
        watchdog.start()
        if listener is not None:
            socket = settings.socket_dir / OFFLOAD_SOCKET
            pages = DaemonPages(daemon.server_info, recorder.read, socket)
            threading.Thread(target=pages.remember, name="kvferry-history", daemon=True).start()
            HttpListener(listener, pages.pages()).start()

    forbid_dumps()
    allow_descriptors()
    server.run(make_ports, config.engine_settings(), settings, on_started)


def build_store(config: Config, telemetry: Telemetry = SILENCE) -> ObjectStore:
    """The configured object store; it is not asked anything yet.

    Raises:
        ConfigError: the URL, an AWS setting or the NIXL installation is wrong.
    """
    from kvferry_server.adapters.integrity import ChecksumCatalog, Integrity  # noqa: PLC0415

    catalog = ChecksumCatalog(config.integrity.catalog_bytes, _catalog_file(config))
    integrity = Integrity(catalog, cast("Verify", config.integrity.verify), telemetry)
    match parse_store_url(config.store.url):
        case FileUrl(directory):
            return _file_store(Path(directory), integrity, config)
        case S3Url(bucket, prefix):
            return _s3_store(bucket, prefix, integrity, config, telemetry)


def _catalog_file(config: Config) -> CatalogFile | None:
    """The file of this store's checksums, its own for each socket directory; None without one."""
    from kvferry_server.adapters.integrity_file import CatalogFile  # noqa: PLC0415

    directory = config.integrity.catalog_directory
    if not directory:
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    whose = f"{config.store.url}\n{endpoint}\n{config.sockets.directory}"
    name = blake2b(os.fsencode(whose), digest_size=8).hexdigest()
    path = Path(directory) / f"{name}.sqlite3"
    try:
        return CatalogFile(path, config.integrity.catalog_file_entries)
    except OSError as error:
        _log.warning(
            "integrity.catalog_directory: %s can't be used (%s): checksums are in memory only, "
            "and what was stored before a restart is loaded without them",
            path,
            error,
        )
        return None


def build_doctor(config: Config) -> FileDoctor | S3Doctor:
    """What looks at the configured object store.

    Raises:
        ConfigError: the URL or an AWS setting is wrong.
    """
    from kvferry_server.adapters.file_doctor import FileDoctor  # noqa: PLC0415

    match parse_store_url(config.store.url):
        case FileUrl(directory):
            return FileDoctor(Path(directory))
        case S3Url(bucket, prefix):
            return _s3_doctor(bucket, prefix)


def _s3_doctor(bucket: str, prefix: str) -> S3Doctor:
    from kvferry_server.adapters.s3_credentials import settings_from_environment  # noqa: PLC0415
    from kvferry_server.adapters.s3_doctor import S3Doctor  # noqa: PLC0415

    return S3Doctor(settings_from_environment(bucket, prefix))


def _file_store(directory: Path, integrity: Integrity, config: Config) -> ObjectStore:
    from kvferry_server.adapters.nixl_file_store import FileObjectStore  # noqa: PLC0415

    useful = len(os.sched_getaffinity(0)) + 1
    threads = min(config.limits.max_inflight_chunks, MAX_FILE_THREADS, useful)
    return FileObjectStore(directory, integrity=integrity, threads=threads)


def _s3_store(
    bucket: str, prefix: str, integrity: Integrity, config: Config, telemetry: Telemetry
) -> ObjectStore:
    from kvferry_server.adapters.nixl_object_store import S3ObjectStore  # noqa: PLC0415
    from kvferry_server.adapters.s3_credentials import (  # noqa: PLC0415
        credential_files,
        resolve_credentials,
        settings_from_environment,
    )
    from kvferry_server.adapters.s3_inspect import S3Inspector  # noqa: PLC0415
    from kvferry_server.adapters.s3_preflight import S3Preflight  # noqa: PLC0415
    from kvferry_server.adapters.s3_rotation import KeySource  # noqa: PLC0415

    settings = settings_from_environment(bucket, prefix)
    return S3ObjectStore(
        settings,
        preflight=lambda round_trip: S3Preflight(settings, round_trip).run(),
        inquiry=partial(S3Inspector, settings),
        integrity=integrity,
        keys=KeySource(
            lambda: resolve_credentials().credentials,
            credential_files,
            min(KEY_WAIT_SECONDS, config.timeouts.hard_deadline_seconds / 4),
        ),
        telemetry=telemetry,
        agents=math.ceil(config.limits.max_inflight_chunks / REQUESTS_PER_AGENT),
        probe_agents=math.ceil(config.limits.max_probing_keys / REQUESTS_PER_AGENT),
    )
