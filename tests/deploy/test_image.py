"""The Dockerfile, as far as it can be judged unbuilt; `make image-test` builds and runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry_server import __version__
from kvferry_server.cli import config

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "deploy" / "compose" / "vllm.Dockerfile"]
TEXT = (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_is_content(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_runs_as_nobody_special_without_a_shell() -> None:
    last = TEXT.rpartition("\nFROM ")[2]
    assert "\nUSER 65532:65532\n" in last
    assert "\nRUN " not in last
    for name in ("ENTRYPOINT", "CMD"):
        assert re.search(rf'^(HEALTHCHECK .*)?{name} \["', last, re.MULTILINE)
    assert 'CMD ["kvferry", "health"]' in last


def test_every_package_is_pinned_by_hash() -> None:
    installs = [each for each in TEXT.split("&&") if "pip" in each and " install " in each]
    assert len(installs) == 3
    for each in installs:
        assert "--no-deps" in each
        assert "--require-hashes" in each or "dist/*.whl" in each


def test_the_context_has_what_is_copied_and_nothing_else() -> None:
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = {
        word
        for line in TEXT.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert {path for path in copied if not path.startswith("deploy/image/")} == set(let_in) - {
        "deploy/image",
        "dist/*.whl",  # of vllm.Dockerfile
    }
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()


def test_its_settings_load() -> None:
    variables = dict(re.findall(r"(KVFERRY_\w+)=(\S+)", TEXT))
    shipped = ROOT / "deploy" / "image" / "config.toml"
    assert variables.pop("KVFERRY_CONFIG") == "/etc/kvferry/config.toml"
    loaded = config.load({"--config": str(shipped)}, variables, uid=65532)
    assert loaded.warnings == ()
    assert loaded.config.sockets.directory == "/run/kvferry/sockets"
    assert loaded.config.http.listen == "0.0.0.0:9477"


def test_its_state_is_in_its_volume() -> None:
    variables = dict(re.findall(r"(HOME|XDG_\w+)=(\S+)", TEXT))
    assert config.default_paths(variables, uid=65532).state == "/var/lib/kvferry"
    assert '"/var/lib/kvferry"]' in TEXT


def test_versions_agree() -> None:
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "deploy").rglob("*.Dockerfile")]
    named = {
        version
        for path in files
        for version in re.findall(r"kvferry(?::|-)(\d+\.\d+\.\d+)", path.read_text(), re.IGNORECASE)
    }
    assert named == {__version__}
    assert f"\nARG VERSION={__version__}\n" in TEXT  # the label's, unless a build says otherwise
