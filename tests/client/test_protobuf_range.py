"""G18: the client imports, and encodes, under the oldest and the newest protobuf allowed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import google.protobuf, grpc
from kvferry.v1 import admin_pb2_grpc, lease_pb2, offload_pb2, offload_pb2_grpc, types_pb2
import kvferry_client
from kvferry_client import codec
request = codec.lookup_request(offload_pb2.LookupRequest().session, [], 1.5)
assert offload_pb2.LookupRequest.FromString(request.SerializeToString()).timeout.seconds == 1
reply = lease_pb2.LeaseReply(attached=offload_pb2.AttachRegionResponse(boot_id="b"))
assert lease_pb2.LeaseReply.FromString(reply.SerializeToString()) == reply
offload_pb2_grpc.OffloadServiceStub(grpc.insecure_channel("unix:/nowhere"))
assert types_pb2.SessionRef.DESCRIPTOR.fields_by_name["token"].GetOptions().debug_redact
print(google.protobuf.__version__, grpc.__version__)
"""
FIRST_WHEELS = {(3, 11): "1.62", (3, 12): "1.62", (3, 13): "1.66"}
"""The oldest grpcio that is installed without a compiler, by Python, if it's not too old for us."""


def bounds() -> tuple[str, str, str]:
    """The oldest protobuf, the first that is too new, and the oldest grpcio declared."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = " ".join(sorted(project["dependencies"]))
    found = re.fullmatch(r"grpcio>=([0-9.]+) protobuf>=([0-9.]+),<([0-9.]+)", declared)
    assert found is not None
    return found[2], found[3], found[1]


@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_G18_imports_under_the_ends_of_the_range(tmp_path: Path, end: str) -> None:
    oldest, too_new, oldest_grpcio = bounds()
    wanted = [f"protobuf<{too_new}", "grpcio"]
    if end == "oldest":
        grpcio = max(oldest_grpcio, FIRST_WHEELS[sys.version_info[:2]])
        wanted = [f"protobuf=={oldest}", f"grpcio~={grpcio}.0"]
    venv.create(tmp_path / "v", with_pip=False, symlinks=True)
    python = str(tmp_path / "v" / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    subprocess.run(
        [*install, "--disable-pip-version-check", "--no-warn-script-location", *wanted],
        check=True,
        timeout=240,
    )
    paths = {"PYTHONPATH": f"{ROOT / 'proto'}:{ROOT / 'client'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM],
        check=True,
        capture_output=True,
        text=True,
        env=paths,
        timeout=60,
    )
    version = done.stdout.split()[0]
    assert version == oldest if end == "oldest" else version.split(".")[0] == str(int(too_new) - 1)
