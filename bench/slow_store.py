"""Starts `latency_server` and sets how slow it is."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import free_ports
from tests.support.s3_server import REGION

from .latency_server import CONTROL
from .workers.protocol import ROOT

BUCKET = "bench"
_SECONDS = 10


class SlowStore:
    """A running server; it has what `S3Server` tells a client."""

    bucket = BUCKET
    access_key = "bench"
    secret_key = "bench-secret"  # noqa: S105 - nobody checks it

    def __init__(self, port: int) -> None:
        self.endpoint_url = f"http://127.0.0.1:{port}"

    def environment(self) -> dict[str, str]:
        """The variables that point an AWS SDK at this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def slow_down(self, latency_seconds: float, bytes_per_second: float = 0.0) -> None:
        """From now on answer so late, and move so much in a second; 0 for any."""
        body = f"{latency_seconds} {bytes_per_second}".encode()
        request = urllib.request.Request(self.endpoint_url + CONTROL, body, method="PUT")  # noqa: S310
        with urllib.request.urlopen(request, timeout=_SECONDS):  # noqa: S310 - loopback
            pass


@contextmanager
def running() -> Iterator[SlowStore]:
    """Start it, end it."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "bench.latency_server", str(port)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the slow store did not start")
        yield SlowStore(port)
    finally:
        process.stdin.close()
        process.wait(_SECONDS)
        process.stdout.close()
