"""The image: built from the Dockerfile, measured, and laid out as a directory.

Imports bases. The directory that `unpack` makes can be read by any user, as a container's root.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from .bases import BASE, BUILD_BASE, buildah

ROOT = Path(__file__).resolve().parents[2]
NAME = "localhost/kvferry:test"
CERTIFICATES = "/etc/ssl/certs"
LIMIT_BYTES = 400_000_000


def build(scratch: Path) -> None:
    """Build it.

    pip inside the build trusts what this machine trusts: its CA directory is mounted while a step
    runs, and nothing of that is in the image.
    """
    trust = scratch / "pip.conf"
    trust.write_text(f"[global]\ncert = {CERTIFICATES}/ca-certificates.crt\n")
    volumes = [f"{CERTIFICATES}:{CERTIFICATES}:ro", f"{trust}:/etc/pip.conf:ro"]
    head = ["git", "rev-parse", "HEAD"]
    revision = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    arguments = {"BASE": BASE, "BUILD_BASE": BUILD_BASE, "REVISION": revision.strip()}
    command = ["bud", "--isolation", "chroot", "--layers", "--format", "docker", "--tag", NAME]
    command += [word for each in volumes for word in ("--volume", each)]
    command += [word for item in arguments.items() for word in ("--build-arg", "=".join(item))]
    print(buildah(*command, ROOT))


def config() -> dict[str, Any]:
    """What the image says of itself."""
    return json.loads(buildah("inspect", "--type", "image", NAME))["Docker"]["config"]


def compressed_bytes(scratch: Path) -> int:
    """Size of its layers as a registry keeps them."""
    archive = scratch / "image"
    buildah("push", "--quiet", NAME, f"oci:{archive}")
    index = json.loads((archive / "index.json").read_text())
    digest = index["manifests"][0]["digest"].replace(":", "/")
    layers = json.loads((archive / "blobs" / digest).read_text())["layers"]
    return sum(layer["size"] for layer in layers)


def unpack(target: Path) -> int:
    """Lay its root file system out; return its size in bytes."""
    container = buildah("from", NAME)
    try:
        mounted = buildah("mount", container)
        subprocess.run(["cp", "-a", mounted, target], check=True)
    finally:
        buildah("rm", container)
    target.chmod(0o755)
    files = (path.lstat() for path in target.rglob("*") if path.is_symlink() or path.is_file())
    return sum({entry.st_ino: entry.st_size for entry in files}.values())


def variables(image: dict[str, Any]) -> dict[str, str]:
    """Its environment."""
    return dict(each.split("=", 1) for each in image["Env"])


def command(image: dict[str, Any]) -> list[str]:
    """What runs in it when nothing else is said."""
    return [*image["Entrypoint"], *image["Cmd"]]


def user(image: dict[str, Any]) -> int:
    """The uid that it runs as."""
    return int(image["User"].split(":")[0])


def path_in(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without what would reach into a container."""
    return {"PATH": os.environ["PATH"]} | environment
