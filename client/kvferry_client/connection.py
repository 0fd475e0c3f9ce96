"""The connection thread: attach, watch the lease until end-of-file, attach again, for ever.

Only this thread creates and ends sessions. May import everything but the other workers.
"""

from __future__ import annotations

import threading
import time
from importlib import metadata
from typing import TYPE_CHECKING, Final

from kvferry_client import codec
from kvferry_client.channel import DaemonChannel
from kvferry_client.errors import AttachRefusedError, KVFerryClientError
from kvferry_client.jobs import JobTable
from kvferry_client.lease import connect
from kvferry_client.region import open_region
from kvferry_client.session import Session
from kvferry_client.shared import logger

if TYPE_CHECKING:
    from kvferry_client.shared import Shared

FIRST_RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 0.5
"""The daemon is found again within this time after it listens."""
REMIND_SECONDS: Final = 60.0
"""How often a lasting failure to attach is logged again."""


class Connection:
    """Body of the connection thread."""

    def __init__(self, shared: Shared) -> None:
        """Keep the shared state; touches nothing yet."""
        self._shared = shared
        self._logged = ("", 0.0)

    def run(self) -> None:
        """Keep a session open until the client is closed."""
        shared = self._shared
        retry = FIRST_RETRY_SECONDS
        while True:
            with shared.lock:
                if shared.closing:
                    return
            try:
                session = self._attach()
            except (KVFerryClientError, OSError, ValueError, RuntimeError) as error:
                self._note_failure(str(error))
                with shared.lock:
                    shared.changed.wait_for(lambda: shared.closing, retry)
                retry = min(2 * retry, MAX_RETRY_SECONDS)
                continue
            retry = FIRST_RETRY_SECONDS
            self._logged = ("", 0.0)
            self._serve(session)

    def _attach(self) -> Session:
        """Open a session.

        Raises KVFerryClientError, OSError, ValueError (released view), or RuntimeError while
        this process gets no threads though gRPC needed one.
        """
        shared, config = self._shared, self._shared.config
        if shared.lacks_threads:
            threading.Thread(target=int, name="kvferry-probe", daemon=True).start()
            shared.lacks_threads = False
        with open_region(config.region_view) as region:
            request = codec.attach_request(
                region,
                client_version=client_version(),
                engine_id=config.engine_id,
                namespace=config.namespace,
                vllm_namespace=config.vllm_namespace,
                slot_bytes=config.slot_bytes,
            )
            lease = connect(config.socket_dir)
            with shared.lock:
                shared.attaching = lease
                if shared.closing:
                    lease.half_close()
            try:
                reply = lease.attach(request, region)
            except BaseException as error:
                lease.abandon()
                with shared.lock:
                    shared.attaching = None
                    if isinstance(error, AttachRefusedError):
                        shared.counters["attach_refused"] += 1
                raise
        limits = codec.limits_of(reply.limits)
        return Session(
            ref=reply.session,
            namespace=config.namespace,
            boot_id=reply.boot_id,
            limits=limits,
            server_version=reply.server_version,
            lease=lease,
            channel=DaemonChannel(config.socket_dir),
            jobs=JobTable(limits, config.slot_bytes, config.max_queued_jobs),
            stall_timeout_s=config.stall_timeout_s,
        )

    def _serve(self, session: Session) -> None:
        """Publish a session and keep it until its lease ends."""
        shared = self._shared
        with shared.lock:
            shared.session, shared.attaching = session, None
            shared.counters["sessions_attached"] += 1
            shared.last_error = ""
            outdated = session.namespace != shared.config.namespace
            closing = session.ending = shared.closing or outdated
            shared.wake_all()
        if closing:
            session.lease.half_close()
        logger.info(
            "attached %d slots of %d bytes to kvferry %s (session %s, namespace %s)",
            shared.config.slots,
            shared.config.slot_bytes,
            session.server_version,
            session.ref.session_id,
            session.namespace,
        )
        session.lease.wait_for_end()
        with shared.lock:
            lost = shared.end_session(session)
            closing = shared.closing
        session.channel.close()
        if closing:
            logger.info("detached from kvferry, %d jobs were open", lost)
        else:
            logger.warning("the kvferry daemon ended the session, %d jobs were open", lost)

    def _note_failure(self, text: str) -> None:
        now = time.monotonic()
        with self._shared.lock:
            self._shared.last_error = text
        before, when = self._logged
        if text != before or now - when >= REMIND_SECONDS:
            self._logged = (text, now)
            logger.warning("no kvferry daemon, working without it and trying on: %s", text)


def client_version() -> str:
    """Return this package's version."""
    try:
        return metadata.version("kvferry")
    except metadata.PackageNotFoundError:
        return "0.0.0"
