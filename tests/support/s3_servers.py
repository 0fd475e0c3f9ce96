"""Real S3 servers for the tests: on loopback, with a bucket; they can crash and come back.

Owns: one class per server and the table of all. Use them as context managers:

    with started("localbucket") as server:
        server.endpoint_url, server.bucket, server.environment()

See `s3_server.S3Server` for what a server can do.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from .certificates import self_signed_certificate
from .processes import find_binary, listens, printed, run_once
from .s3_ceph import CephRGW
from .s3_server import REGION, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class MotoTLS(Moto):
    """moto behind https, with a certificate that only `ca_bundle` vouches for."""

    def prepare(self) -> None:
        certificate, key = self_signed_certificate("127.0.0.1")
        for name, data in (("certificate.pem", certificate), ("key.pem", key)):
            (self.directory / name).write_bytes(data)
        self.ca_bundle = str(self.directory / "certificate.pem")

    def command(self) -> list[str]:
        return [*super().command(), "-c", self.ca_bundle, "-k", str(self.directory / "key.pem")]


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


def server_classes() -> dict[str, type[S3Server]]:
    """All servers by name, those of the slower tier last."""
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
