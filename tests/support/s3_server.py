"""What every S3 server of the tests can do.

Lifecycle: a server keeps its port from the first start on, and its directory until `close`. `kill`
is a crash, `stop` a clean end; `start` after either comes back on the same port, with the data if
`keeps_data`.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import boto3
from botocore.config import Config

from .processes import Child, StartFailed, clean_environment, free_ports, listens

BUCKET = "kvferry-test"
ACCESS_KEY = "kvferrytest"
SECRET_KEY = "kvferry-test-secret"
REGION = "us-east-1"
START_ATTEMPTS = 3
"""A port that was free may be taken before the server binds it."""


class S3Server(ABC):
    """An S3 server on loopback.

    Attributes:
        name: as in the documentation's table.
        programs: what must be installed.
        keeps_data: objects survive `kill` followed by `start`.
        checks_credentials: a wrong secret is refused.
        port_count: loopback ports it needs; the first is the S3 endpoint's.
        start_seconds: guard for the start.
    """

    name: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    keeps_data: ClassVar[bool] = True
    checks_credentials: ClassVar[bool] = True
    port_count: ClassVar[int] = 1
    start_seconds: ClassVar[float] = 30.0

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"kvferry-{self.name}-", dir=self._parent()))
        self.bucket = BUCKET
        self.access_key = ACCESS_KEY
        self.secret_key = SECRET_KEY
        self.ca_bundle = ""
        self.ports: list[int] = []
        self._child: Child | None = None

    @classmethod
    def version(cls) -> str:
        """The version of the installed program."""
        raise NotImplementedError

    @abstractmethod
    def command(self) -> list[str]:
        """What to run, with `self.ports` and `self.directory`."""

    def variables(self) -> dict[str, str]:
        """Environment variables that the server needs."""
        return {}

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing
        """What comes once, before the first start."""

    def ready(self) -> bool:
        """Whether the endpoint answers."""
        return listens(self.port)

    @property
    def port(self) -> int:
        """The S3 endpoint's port."""
        return self.ports[0]

    @property
    def endpoint_url(self) -> str:
        """The S3 endpoint."""
        scheme = "https" if self.ca_bundle else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """Process ids of what runs now."""
        return [self._child.pid] if self._child and self._child.running else []

    def environment(self) -> dict[str, str]:
        """The variables that point an AWS SDK at this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
        } | ({"AWS_CA_BUNDLE": self.ca_bundle} if self.ca_bundle else {})

    def client(self, **config: Any) -> Any:
        """A boto3 client for this server: path addressing, no checksum headers, no retries."""
        options = {
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "retries": {"total_max_attempts": 1},
            "proxies": {},
        }
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            verify=self.ca_bundle or None,
            config=Config(**(options | config)),
        )

    def start(self) -> None:
        """Start, wait until it answers, and make sure that the bucket exists."""
        if self.ports:
            self._launch()
        else:
            self._first_start()
        self.make_bucket(self.bucket)

    def make_bucket(self, name: str) -> None:
        """Create a bucket unless it exists."""
        client = self.client()
        try:
            names = [each["Name"] for each in client.list_buckets()["Buckets"]]
            if name not in names:
                client.create_bucket(Bucket=name)
        finally:
            client.close()

    def stop(self) -> None:
        """End it cleanly."""
        if self._child:
            self._child.stop()

    def kill(self) -> None:
        """End it as a crash does."""
        if self._child:
            self._child.kill()

    def freeze(self) -> None:
        """It accepts connections, but answers nothing until `thaw`."""
        if self._child:
            self._child.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        if self._child:
            self._child.signal(signal.SIGCONT)

    def abandon(self) -> None:
        """End it and everything that it needs to run."""
        self.kill()

    def close(self) -> None:
        """End it and remove its directory."""
        self.abandon()
        shutil.rmtree(self.directory, ignore_errors=True)

    def output(self) -> str:
        """The end of what the server printed."""
        return self._child.output() if self._child else ""

    @classmethod
    def _parent(cls) -> str | None:
        return None

    def _first_start(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            self.ports = free_ports(self.port_count)
            try:
                self.prepare()
                self._launch()
            except StartFailed:
                self.abandon()
                if attempt == START_ATTEMPTS:
                    raise
                shutil.rmtree(self.directory)
                self.directory.mkdir()
            else:
                return

    def _launch(self) -> None:
        self._child = Child(
            self.command(), self.directory / "server.log", clean_environment(self.variables())
        )
        self._child.wait_until(self.ready, self.start_seconds)
