"""The inside of the daemon's container: a real S3 server, its credentials, and the daemon.

Run as `python -m tests.e2e.pod STORE`. Reads one JSON command a line from standard input, answers
each with one JSON line, and ends with its input. The secrets are made here, at random; only the
answer to `secrets` tells them, so that the scenario can look for them elsewhere. Objects are listed
and damaged here too, through S3: nothing outside reaches the server, which listens on the loopback
interface of a net namespace of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import grpc

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from tests.support.processes import Child, StartFailed, clean_environment
from tests.support.s3_servers import server_classes

from .sandbox import SOCKET_DIR

PREFIX = "e2e"
START_SECONDS = 60.0


class Pod:
    """The S3 server and, most of the time, a daemon.

    Args:
        store: name of the S3 server.
    """

    def __init__(self, store: str) -> None:
        self._directory = Path(tempfile.mkdtemp())
        self._server = server_classes()[store]()
        self._server.access_key = secrets.token_hex(10)
        self._server.secret_key = secrets.token_hex(20)
        self._server.start()
        self._client = self._server.client(retries={"total_max_attempts": 5}, read_timeout=120)
        self._daemon: Child | None = None

    def do_facts(self) -> dict[str, Any]:
        """What the container looks like from inside."""
        return {
            "uid": os.getuid(),
            "store": f"{self._server.name} {self._server.version()}",
            "shared_memory": sorted(each.name for each in Path("/dev/shm").iterdir()),
            "networks": [name for _, name in socket.if_nameindex()],
        }

    def do_secrets(self) -> dict[str, str]:
        """The S3 credentials."""
        return {"access key": self._server.access_key, "secret key": self._server.secret_key}

    def do_start_daemon(
        self, verify: str, *, allow_overflow: bool = True, wait: bool = True
    ) -> dict[str, Any]:
        """Start `kvferry serve`; returns when its store has passed the preflight, or it serves.

        The engine is of another user namespace: here it looks like uid 65534, the overflow.
        """
        config = self._directory / "config.toml"
        config.write_text(
            f'[store]\nurl = "s3://{self._server.bucket}/{PREFIX}"\n'
            f'[integrity]\nverify = "{verify}"\n'
            f'[sockets]\ndirectory = "{SOCKET_DIR}"\n'
            f"allow_overflow_uid = {str(allow_overflow).lower()}\n"
            '[http]\nlisten = ""\n'
        )
        self._daemon = Child(
            ["kvferry", "serve", "--config", str(config)],
            self._directory / "daemon.log",
            clean_environment(self._server.environment()),
        )
        self._daemon.wait_until(self._store_is_ready if wait else self._serves, START_SECONDS)
        return self.do_info()

    def do_wait_ready(self) -> dict[str, Any]:
        """Wait until the running daemon's store has passed the preflight."""
        if self._daemon is None:
            raise StartFailed("no daemon was started")
        self._daemon.wait_until(self._store_is_ready, START_SECONDS)
        return self.do_info()

    def do_kill_daemon(self) -> dict[str, Any]:
        """SIGKILL."""
        if self._daemon:
            self._daemon.kill()
        return {}

    def do_stop_store(self) -> dict[str, Any]:
        """End the S3 server; its data stays."""
        self._server.stop()
        return {}

    def do_start_store(self) -> dict[str, Any]:
        """Start the S3 server again, on the same port."""
        self._server.start()
        return {}

    def do_stop_daemon(self) -> dict[str, Any]:
        """SIGTERM, and wait for the end."""
        if self._daemon:
            self._daemon.stop()
        return {"sockets": sorted(each.name for each in SOCKET_DIR.glob("*"))}

    def do_info(self) -> dict[str, Any]:
        """What the daemon says of itself on its admin socket."""
        with grpc.insecure_channel(f"unix:{SOCKET_DIR}/admin.sock") as channel:
            info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(
                admin_pb2.GetServerInfoRequest(), timeout=10
            )
        return {
            "version": info.version,
            "store": info.store.url,
            "settings": info.store.settings,
            "ready": info.store.ready,
            "sessions": info.sessions,
            "counters": dict(info.counters),
        }

    def do_objects(self) -> list[dict[str, Any]]:
        """Each stored chunk: its name, its length in bytes, and whether it holds only zeros."""
        return [
            {"key": key, "bytes": len(body), "zeros": not any(body)}
            for key, body in ((key, self._body(key)) for key in self._keys())
        ]

    def do_zero_objects(self) -> dict[str, int]:
        """Overwrite each stored chunk with as many zeros."""
        keys = self._keys()
        for key in keys:
            zeros = bytes(len(self._body(key)))
            self._client.put_object(Bucket=self._server.bucket, Key=key, Body=zeros)
        return {"overwritten": len(keys)}

    def do_log(self) -> str:
        """What the daemon wrote."""
        log = self._directory / "daemon.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def close(self) -> None:
        """End the daemon, then the server."""
        self.do_stop_daemon()
        self._server.close()

    def _store_is_ready(self) -> bool:
        try:
            return bool(self.do_info()["ready"])
        except grpc.RpcError:
            return False

    def _serves(self) -> bool:
        try:
            return bool(self.do_info()["version"])
        except grpc.RpcError:
            return False

    def _keys(self) -> list[str]:
        listing = self._client.list_objects_v2(Bucket=self._server.bucket, Prefix=f"{PREFIX}/")
        return [each["Key"] for each in listing.get("Contents", []) if each["Key"].endswith(".bin")]

    def _body(self, key: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self._server.bucket, Key=key)["Body"].read()
        return body


def main() -> None:
    """Do what standard input says, until its end."""
    pod = Pod(sys.argv[1])
    try:
        for line in sys.stdin:
            request = json.loads(line)
            command = getattr(pod, f"do_{request.pop('command')}")
            try:
                answer = {"answer": command(**request)}
            except (OSError, StartFailed, grpc.RpcError):
                answer = {"error": f"{traceback.format_exc()}\n{pod.do_log()[-4000:]}"}
            print(json.dumps(answer), flush=True)  # noqa: T201
    finally:
        pod.close()


if __name__ == "__main__":
    main()
