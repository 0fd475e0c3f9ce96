"""Takes out of the image's environment what the daemon can't use, and proves that it still works.

Run by the environment's own Python, while the image is built. Out go: NIXL's expert-parallel
extension (torch), its plugins but OBJ and POSIX, the libraries that only those need, and botocore's
service descriptions but S3's and those that credentials come from. Imports the standard library;
the proof needs NIXL and boto3.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PLUGINS = {"libplugin_OBJ.so", "libplugin_POSIX.so"}
SERVICES = {"s3", "signin", "sso", "sso-oidc", "sts"}
PACKAGE = "nixl_cu12"
LIBRARY_FOLDERS = ("nixl_cu12.libs", ".nixl_cu12.mesonpy.libs")
PROOF = """
import boto3
from nixl_cu12._api import nixl_agent, nixl_agent_config
agent = nixl_agent("image", nixl_agent_config(enable_prog_thread=False, backends=[]))
assert {"OBJ", "POSIX"} <= set(agent.get_plugin_list()), agent.get_plugin_list()
agent.create_backend("POSIX", {})
agent.create_backend("OBJ", {
    "bucket": "none", "access_key": "none", "secret_key": "none", "region": "us-east-1",
    "endpoint_override": "http://127.0.0.1:9", "scheme": "http",
})
for name in ("s3", "sts", "sso", "sso-oidc"):
    boto3.client(name, region_name="us-east-1")
print("NIXL's OBJ and POSIX and boto3's S3 and STS start")
"""


def needed_libraries(roots: list[Path]) -> set[Path]:
    """What the loader finds for some libraries, themselves included."""
    found = {root.resolve() for root in roots}
    for root in roots:
        listing = subprocess.run(["ldd", root], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            _, arrow, rest = line.partition("=> ")
            if arrow and rest.startswith("/"):
                found.add(Path(rest.split(" (")[0]).resolve())
    return found


def trim_nixl(site: Path) -> None:
    """Leave the bindings, two plugins, and what these are linked with."""
    for path in site.glob("nixl_ep_cu12*"):
        shutil.rmtree(path)
    libraries = [
        path
        for folder in LIBRARY_FOLDERS
        for path in (site / folder).rglob("*")
        if path.is_file() and ".so" in path.name
    ]
    plugins = [path for path in libraries if path.name in PLUGINS]
    needed = needed_libraries([*(site / PACKAGE).glob("*.so"), *plugins])
    for path in libraries:
        if path.resolve() not in needed:
            path.unlink()


def trim_botocore(site: Path) -> None:
    """Leave the descriptions of a few services, and those that are of none."""
    for path in (site / "botocore" / "data").iterdir():
        if path.is_dir() and path.name not in SERVICES:
            shutil.rmtree(path)


def trim_tests(site: Path) -> None:
    """Remove NumPy's own tests."""
    for path in [*(site / "numpy").rglob("tests")]:
        shutil.rmtree(path)


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def main() -> None:
    """Trim this Python's environment and prove that it works."""
    site = Path(sysconfig.get_path("purelib"))
    before = size_of(site)
    trim_nixl(site)
    trim_botocore(site)
    trim_tests(site)
    print(f"{site}: {before:,} bytes before, {size_of(site):,} after")
    subprocess.run([sys.executable, "-c", PROOF], check=True)


if __name__ == "__main__":
    main()
