"""An S3 server and kvferry daemons, kept by a process of the development environment.

vLLM's environment has neither boto3 nor a daemon, and shall have neither. The tests there start
this module with the Python of the other environment and send it a JSON object a line, `{"do":
"daemon", ...}`; it answers each with a line. It ends at end-of-file. Imports tests.support.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.processes import clean_environment
from tests.support.s3_servers import started

START_SECONDS = 60.0


class Backend:
    """What the commands act on."""

    def __init__(self, server: Any, directory: Path) -> None:
        self._server = server
        self._client = server.client()
        self._directory = directory
        self._daemon: subprocess.Popen[bytes] | None = None
        self._runs = 0

    def where(self) -> dict[str, str]:
        """The server's address and keys."""
        return {
            "bucket": self._server.bucket,
            "endpoint": self._server.endpoint_url.removeprefix("http://"),
            "access_key": self._server.access_key,
            "secret_key": self._server.secret_key,
        }

    def daemon(self, naming: str = "kvferry", prefix: str = "kv", options: str = "") -> str:
        """Start a daemon in place of the one before; return its socket directory."""
        self.end_daemon()
        self._runs += 1
        config = self._directory / f"config{self._runs}.toml"
        url = f"s3://{self._server.bucket}/{prefix}".rstrip("/")
        config.write_text(f'[store]\nurl = "{url}"\nnaming = "{naming}"\n{options}')
        sockets = self._directory / "run"
        log = self._directory / f"serve{self._runs}.log"
        command = [sys.executable, "-m", "kvferry_server.cli", "serve", "--config", str(config)]
        with log.open("wb") as output:
            self._daemon = subprocess.Popen(
                [*command, "--socket-dir", str(sockets), "--http-listen", ""],
                env=clean_environment(self._server.environment()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        end = time.monotonic() + START_SECONDS
        while ": ready: " not in log.read_text():
            if self._daemon.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text())
            time.sleep(0.02)
        return str(sockets)

    def end_daemon(self, number: int = signal.SIGTERM) -> None:
        """End the daemon, if one runs."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGCONT)
            self._daemon.send_signal(number)
            self._daemon.wait()
            self._daemon = None

    def signal_daemon(self, number: int) -> None:
        """Stop the daemon for a while, or let it go on."""
        if self._daemon is not None:
            self._daemon.send_signal(number)

    def objects(self) -> dict[str, str]:
        """Every object's key and bytes, in hexadecimal."""
        listed = self._client.list_objects_v2(Bucket=self._server.bucket).get("Contents", [])
        return {each["Key"]: self._read(each["Key"]).hex() for each in listed}

    def delete(self, key: str) -> None:
        """Delete one object."""
        self._client.delete_object(Bucket=self._server.bucket, Key=key)

    def put(self, key: str, data: str) -> None:
        """Write one object, of hexadecimal data."""
        self._client.put_object(Bucket=self._server.bucket, Key=key, Body=bytes.fromhex(data))

    def clear(self) -> None:
        """Delete every object."""
        for key in self.objects():
            self.delete(key)

    def freeze(self) -> None:
        """Let the server answer nothing."""
        self._server.freeze()

    def thaw(self) -> None:
        """Let it answer again."""
        self._server.thaw()

    def stop_server(self) -> None:
        """Let the server refuse connections."""
        self._server.kill()

    def start_server(self) -> None:
        """Let it come back."""
        self._server.start()

    def _read(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self._server.bucket, Key=key)["Body"].read()
        return data


def main() -> None:
    """Serve commands until end-of-file."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with started(name) as server:
        backend = Backend(server, directory)
        with contextlib.ExitStack() as stack:
            stack.callback(backend.end_daemon)
            print(json.dumps({"value": "ready"}), file=answers, flush=True)
            for line in sys.stdin:
                command = json.loads(line)
                value = getattr(backend, command.pop("do"))(**command)
                print(json.dumps({"value": value}), file=answers, flush=True)


if __name__ == "__main__":
    main()
