"""Debian roots for the image's two stages, where no registry of images can be reached.

Owns a cache outside the checkout: a root with pip and venv to build in, one without them to run on,
and buildah's storage. Needs root, debootstrap and buildah. Imports the standard library.

These stand in for the published base that the Dockerfile names. They have the same Python, 3.11,
but at another place: what is built on them shows that the Dockerfile works, not that its default
base does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
BUILD_ONLY = (
    *("python3-venv", "python3.11-venv", "python3-pip-whl", "python3-setuptools-whl"),
    *("python3-distutils", "python3-lib2to3"),
)
BULK = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")
"""What published slim images leave out too."""
BASE = "localhost/kvferry-base"
BUILD_BASE = "localhost/kvferry-build-base"


def cache() -> Path:
    """Where the roots and buildah's storage are kept between runs."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvferry-image"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def buildah(*arguments: str | Path) -> str:
    """Run buildah on the cache's storage; return what it printed."""
    storage = cache() / "storage"
    return subprocess.run(
        ["buildah", "--root", storage, "--runroot", cache() / "run", *arguments],
        env=os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()


def make_bases() -> None:
    """Make sure that the storage has both images."""
    if BASE in buildah("images", "--format", "{{.Name}}"):
        return
    build = _build_root()
    run = cache() / "base"
    shutil.rmtree(run, ignore_errors=True)
    subprocess.run(["cp", "-a", build, run], check=True)
    subprocess.run(["chroot", run, "dpkg", "--purge", *BUILD_ONLY], check=True)
    for folder in BULK:
        shutil.rmtree(run / folder)
    _commit(build, BUILD_BASE)
    _commit(run, BASE)
    shutil.rmtree(run)


def _build_root() -> Path:
    root = cache() / "build"
    if not root.exists():
        part = cache() / "build.part"
        shutil.rmtree(part, ignore_errors=True)
        include = f"--include={PACKAGES}"
        command = ["debootstrap", "--variant=minbase", include, SUITE, part, _mirror()]
        subprocess.run(command, check=True)
        part.rename(root)
    return root


def _mirror() -> str:
    """The archive that this machine's apt uses."""
    targets = ["apt-get", "indextargets", "Created-By: Packages", "--format", "$(REPO_URI)"]
    return subprocess.run(targets, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]


def _commit(root: Path, name: str) -> None:
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root, "/")
    buildah("commit", "--quiet", "--rm", container, name)
