"""A clean place to walk a page in: mount, process and, unless told otherwise, network namespaces.

`walk` runs a script as root of its own small world. What is written to /etc, /opt, /run and /var is
gone at the end, $HOME is an empty folder, and a moto server holds `s3://bucket`. Nobody outside
sees its ports, sockets or files, and no process outlives it. Needs util-linux, and root or user
namespaces.

`python -m tests.walk.sandbox FOLDER` is what runs inside.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import boto3

from tests.support.processes import listens

from .pages import ROOT

REGION = "eu-central-1"
BUCKET = "bucket"
PORT = 9000
GUARD_SECONDS = 280.0
_KEYS = "[default]\naws_access_key_id = walker\naws_secret_access_key = walkers-secret\n"
_WAY_OUT = ("PIP_", "UV_", "SSL_CERT_", "REQUESTS_CA_")
"""Variables by which pip and uv find packages."""
_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_SIOCSIFFLAGS, _UP = 0x8914, 0x1
_OVERLAID = ("etc", "opt", "run", "var")


def works() -> bool:
    """Whether such a place can be made here."""
    done = subprocess.run([*_command(network=False), "true"], capture_output=True, check=False)
    return done.returncode == 0


def walk(
    script: str, folder: Path, path: str, *, network: bool = False, seconds: float = GUARD_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a bash script in there, in `folder`/home.

    Args:
        script: it ends at its first failure.
        folder: an empty one; it holds everything that the walk writes.
        path: the script's PATH.
        network: share the machine's network, for installations.
        seconds: guard.
    """
    for name in ("home/.aws", *(f"{kind}/{name}" for name in _OVERLAID for kind in ("new", "old"))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "home" / ".aws" / "credentials").write_text(_KEYS)
    (folder / "script").write_text(f"set -euo pipefail\n{script}")
    environment = {
        "PATH": path,
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{PORT}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    way_out = {
        name: text
        for name, text in os.environ.items()
        if name.startswith(_WAY_OUT) or name.lower().endswith("_proxy")
    }
    return subprocess.run(
        [*_command(network=network), sys.executable, "-m", "tests.walk.sandbox", folder],
        env=environment | (way_out if network else {}),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def _command(*, network: bool) -> list[str]:
    words = ["unshare", *_NAMESPACES]
    if not network:
        words.append("--net")
    if os.geteuid():
        words.append("--map-root-user")
    return words


def _inside(folder: Path) -> int:
    """Make the place and run the script; its exit status."""
    for name in _OVERLAID:
        layers = f"lowerdir=/{name},upperdir={folder}/new/{name},workdir={folder}/old/{name}"
        _mount("-t", "overlay", "-o", layers, "overlay", f"/{name}")
    if not listens(PORT):
        _raise_loopback()
    server = subprocess.Popen(
        [Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(PORT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not listens(PORT):
        if server.poll() is not None:
            sys.exit("the S3 server ended at its start")
    _make_bucket()
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", folder / "script"], env=environment, cwd=folder / "home", check=False
    )
    return done.returncode


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP))


def _make_bucket() -> None:
    client = boto3.session.Session().client("s3", region_name=REGION)
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    client.close()


if __name__ == "__main__":
    sys.exit(_inside(Path(sys.argv[1])))
