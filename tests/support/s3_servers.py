"""Real S3 servers for the tests: on loopback, with a bucket; they can crash and come back.

Owns: one class per server and the table of all. Use them as context managers:

    with started("localbucket") as server:
        server.endpoint_url, server.bucket, server.environment()

Lifecycle: a server keeps its port from the first start on, and its directory until `close`. `kill`
is a crash, `stop` a clean end; `start` after either comes back on the same port, with the data if
`keeps_data`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
from botocore.config import Config

from .processes import Child, StartFailed, clean_environment, find_binary, free_ports, listens

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        return f"http://127.0.0.1:{self.port}"

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
        }

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


class LocalBucket(S3Server):
    """localbucket: buckets are folders; credentials are not checked."""

    name = "localbucket"
    programs = ("localbucket",)
    checks_credentials = False

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("localbucket")

    def command(self) -> list[str]:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        return ["localbucket", "--port", str(self.port), str(data)]


class Moto(S3Server):
    """moto: objects in memory; credentials are not checked before `require_keys`."""

    name = "moto"
    programs = ("moto_server",)
    keeps_data = False
    checks_credentials = False

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("moto")

    def command(self) -> list[str]:
        return ["moto_server", "-H", "127.0.0.1", "-p", str(self.port)]

    def require_keys(self, *actions: str) -> None:
        """From now on only new keys are let in, and only for these IAM actions."""
        iam = boto3.session.Session().client(
            "iam",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )
        statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.create_user(UserName="test")
        iam.put_user_policy(UserName="test", PolicyName="test", PolicyDocument=policy)
        keys = iam.create_access_key(UserName="test")["AccessKey"]
        iam.close()
        self._after_requests(0)
        self.access_key, self.secret_key = keys["AccessKeyId"], keys["SecretAccessKey"]

    def _after_requests(self, count: int) -> None:
        """Let so many more requests in without a check of their keys."""
        url = f"{self.endpoint_url}/moto-api/reset-auth"
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(url, str(count).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=30):
            pass


class Rclone(S3Server):
    """rclone serve s3: buckets are folders."""

    name = "rclone"
    programs = ("rclone",)

    @classmethod
    def version(cls) -> str:
        return printed("rclone", "version").split()[1].removeprefix("v")

    def command(self) -> list[str]:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        address = f"127.0.0.1:{self.port}"
        keys = f"{self.access_key},{self.secret_key}"
        flags = ["--addr", address, "--auth-key", keys, "--vfs-cache-mode", "off"]
        return ["rclone", "serve", "s3", *flags, "--config", "/dev/null", str(data)]


class SeaweedFS(S3Server):
    """SeaweedFS: master, volume, filer and S3 gateway in one process."""

    name = "seaweedfs"
    programs = ("weed",)
    port_count = 9
    start_seconds = 60.0

    @classmethod
    def version(cls) -> str:
        return printed("weed", "version").split()[2]

    def prepare(self) -> None:
        keys = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "test", "credentials": keys, "actions": actions}
        (self.directory / "data").mkdir()
        (self.directory / "identities.json").write_text(json.dumps({"identities": [identity]}))

    def command(self) -> list[str]:
        names = [
            "s3.port",
            "s3.port.grpc",
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "debug.port",
        ]
        ports = [f"-{name}={port}" for name, port in zip(names, self.ports, strict=True)]
        fixed = [
            f"-dir={self.directory / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3",
            f"-s3.config={self.directory / 'identities.json'}",
            f"-s3.localSocket={self.directory / 's3.sock'}",
            f"-filer.localSocket={self.directory / 'filer.sock'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024",
            "-volume.max=30",
            "-volume.preStopSeconds=0",
            "-master.electionTimeout=1s",
        ]
        return ["weed", "server", *fixed, *ports]

    def ready(self) -> bool:
        return listens(self.port) and self._lists_buckets()

    def close(self) -> None:
        """Also removes the sockets that it always makes in /tmp."""
        super().close()
        for port in self.ports:
            for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                path.unlink(missing_ok=True)

    def make_bucket(self, name: str) -> None:
        """Its volumes may register later than the gateway answers."""
        super().make_bucket(name)
        client = self.client(retries={"total_max_attempts": 8, "mode": "standard"})
        try:
            client.put_object(Bucket=name, Key=".kvferry-started", Body=bytes(100_000))
            client.delete_object(Bucket=name, Key=".kvferry-started")
        finally:
            client.close()

    def _lists_buckets(self) -> bool:
        client = self.client()
        try:
            client.list_buckets()
        except Exception:  # noqa: BLE001 - any failure means: not yet
            return False
        else:
            return True
        finally:
            client.close()


class JuiceFS(S3Server):
    """JuiceFS gateway (MinIO's gateway code): sqlite for metadata, files for data."""

    name = "juicefs"
    programs = ("juicefs",)

    @classmethod
    def version(cls) -> str:
        return printed("juicefs", "version").split()[2].split("+")[0]

    def prepare(self) -> None:
        where = ["--storage", "file", "--bucket", f"{self.directory}/data/", "--trash-days", "0"]
        run_once("juicefs", "format", *where, "--no-update", self._meta, "kvferry")

    @property
    def _meta(self) -> str:
        return f"sqlite3://{self.directory}/meta.db"

    def command(self) -> list[str]:
        files = ["--cache-dir", str(self.directory / "cache"), "--log", f"{self.directory}/gw.log"]
        flags = ["--multi-buckets", "--keep-etag", "--no-usage-report", "--no-banner", *files]
        address = f"127.0.0.1:{self.port}"
        return ["juicefs", "gateway", *flags, self._meta, address]

    def variables(self) -> dict[str, str]:
        return {"MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key}


def printed(program: str, *arguments: str) -> str:
    """Standard output of a short command."""
    path = find_binary(program)
    if path is None:
        raise StartFailed(f"{program} is not installed")
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


def run_once(program: str, *arguments: str) -> None:
    """Run a command to its end; StartFailed with its output if it fails."""
    path = find_binary(program)
    if path is None:
        raise StartFailed(f"{program} is not installed")
    done = subprocess.run(
        [path, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean_environment(),
    )
    if done.returncode:
        raise StartFailed(f"{program} {arguments[0]}: {done.stdout}{done.stderr}")


def server_classes() -> dict[str, type[S3Server]]:
    """All servers by name, those of the slower tier last."""
    from .s3_ceph import CephRGW  # noqa: PLC0415 - it derives from S3Server

    return {each.name: each for each in (LocalBucket, Moto, Rclone, JuiceFS, SeaweedFS, CephRGW)}


def available(name: str) -> bool:
    """Whether the server's programs are installed."""
    return all(find_binary(program) for program in server_classes()[name].programs)


@contextlib.contextmanager
def started(name: str) -> Iterator[S3Server]:
    """A running server with a bucket, ended and removed at the end."""
    server = server_classes()[name]()
    try:
        server.start()
        yield server
    finally:
        server.close()
