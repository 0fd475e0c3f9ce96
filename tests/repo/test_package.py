"""The wheel: what it needs, what it holds, what it offers."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kvferry_client

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", folder),
            *("--python", sys.executable, ROOT),
        ],
        check=True,
        timeout=240,
    )
    (path,) = folder.glob("kvferry-*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (file for file in wheel.namelist() if file.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_base_install_needs_grpcio_and_protobuf_only(wheel: zipfile.ZipFile) -> None:
    needs = re.findall(r"^Requires-Dist: (\S+)(.*)$", metadata(wheel, "METADATA"), re.MULTILINE)
    base = {re.split(r"[<>=!]", name)[0] for name, rest in needs if "extra ==" not in rest}
    assert base == {"grpcio", "protobuf"}


def test_wheel_holds_code_types_and_licence_only(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}
    assert tops == {"kvferry", "kvferry_server", "kvferry_client"}
    suffixes = {Path(name).suffix for name in wheel.namelist() if ".dist-info/" not in name}
    assert suffixes == {".py", ".pyi", ".typed"}
    for top in tops:
        assert f"{top}/py.typed" in wheel.namelist()
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")


def test_every_package_of_the_tree_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    for side in ("proto", "server", "client"):
        for path in (ROOT / side).rglob("*.py"):
            assert path.relative_to(ROOT / side).as_posix() in wheel.namelist()


def test_entry_points_lead_to_something() -> None:
    points = importlib.metadata.distribution("kvferry").entry_points
    names = {(point.group, point.name) for point in points}
    assert names == {("console_scripts", "kvferry"), ("vllm.general_plugins", "kvferry")}
    for point in points:
        assert callable(point.load())


def test_public_surface_of_the_client() -> None:
    assert sorted(kvferry_client.__all__) == [
        "AttachRefusedError",
        "Client",
        "ClientState",
        "DaemonUnreachableError",
        "FakeClient",
        "JobKind",
        "JobResult",
        "KVFerryClientError",
        "LookupReply",
        "Outcome",
        "Presence",
        "RegionError",
        "RequestContext",
    ]
    for name in kvferry_client.__all__:
        assert getattr(kvferry_client, name).__doc__


def test_lock_files_hold_hashes_and_no_torch() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        pins = re.findall(
            r"^([a-z0-9-]+)==.*?(?=^\S|\Z)", path.read_text(), re.MULTILINE | re.DOTALL
        )
        assert pins
        assert "torch" not in pins
        for block in re.split(r"^(?=[a-z0-9-]+==)", path.read_text(), flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block
