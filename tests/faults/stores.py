"""What a scenario's daemon stores in, and a way to read the objects that goes around the daemon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.fault_server import FaultServer
from tests.support.s3_servers import server_classes
from tests.support.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

PREFIX = "p"


class Backing(ABC):
    """A store of objects.

    Attributes:
        url: the daemon's `store.url`.
    """

    url = ""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What the daemon's environment needs."""

    @abstractmethod
    def objects(self) -> dict[str, bytes]:
        """Every object's bytes by its name."""

    @abstractmethod
    def close(self) -> None:
        """End and remove it."""


class FileBacking(Backing):
    """A directory. `view` is where this process sees it."""

    def __init__(self, directory: Path) -> None:
        self.view = directory
        directory.mkdir(exist_ok=True)
        self.url = directory.as_uri()

    def environment(self) -> dict[str, str]:
        return {}

    def objects(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.view)): path.read_bytes() for path in self.view.rglob("*.bin")
        }

    def close(self) -> None:
        """The scenario removes its directory."""


class StubBacking(Backing):
    """The S3 look-alike that misbehaves on command, behind a network that does."""

    def __init__(self) -> None:
        self.server = FaultServer()
        self.server.start()
        self.proxy = TcpProxy(self.server.port).__enter__()
        self.url = f"s3://{self.server.bucket}/{PREFIX}"

    def environment(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.proxy.port}"
        return self.server.environment() | {"AWS_ENDPOINT_URL_S3": endpoint}

    def objects(self) -> dict[str, bytes]:
        names = self.server.keys()
        return {name: self.server.get(name) or b"" for name in names if name.endswith(".bin")}

    def close(self) -> None:
        self.proxy.__exit__()
        self.server.close()


class ServerBacking(Backing):
    """A real S3 server."""

    def __init__(self, name: str) -> None:
        self.server: S3Server = server_classes()[name]()
        self.server.start()
        self.url = f"s3://{self.server.bucket}/{PREFIX}"

    def environment(self) -> dict[str, str]:
        return self.server.environment()

    def objects(self) -> dict[str, bytes]:
        client = self.server.client(retries={"total_max_attempts": 5, "mode": "standard"})
        found: dict[str, bytes] = {}
        try:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.server.bucket):
                for entry in page.get("Contents", ()):
                    name = entry["Key"]
                    if name.endswith(".bin"):
                        answer = client.get_object(Bucket=self.server.bucket, Key=name)
                        found[name] = answer["Body"].read()
        finally:
            client.close()
        return found

    def close(self) -> None:
        self.server.close()


def make_backing(kind: str, root: Path) -> Backing:
    """`file`, `stub` or the name of a real server."""
    if kind == "file":
        return FileBacking(root / "store")
    return StubBacking() if kind == "stub" else ServerBacking(kind)
