"""The README's installation, as written, in an empty folder: small and without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000
pytestmark = pytest.mark.matrix


def test_the_documented_command_installs_less_than_500_mb_and_no_torch(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"^```bash\nmake wheel.*?^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    wheel, install = block.splitlines()[1:3]
    assert wheel.startswith("make wheel && ")
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "build", "--quiet", "--wheel"),
            *("--out-dir", tmp_path / "dist", ROOT),
        ],
        check=True,
        timeout=240,
    )
    script = f"{wheel.removeprefix('make wheel && ')}\n{install}\nkv/bin/kvferry version\n"
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    files = [file for file in (tmp_path / "kv").rglob("*") if file.is_file()]
    assert sum(file.lstat().st_size for file in files) < 500 * MEGABYTE
    assert not any("torch" in file.relative_to(tmp_path).parts for file in files)
