#!/usr/bin/env python3
"""Writes the stubs of proto/kvferry/v1 from its .proto files, or checks that they are fresh.

Uses the standard library and a virtual environment of its own (.venv-protos), because the
generator must be old: gencode of protoc 25.1 has no runtime version check and so imports under
every protobuf that vLLM 0.28 to 0.33 may bring (5.29.6 up to 7.x).

    python tools/generate_protos.py           # write
    python tools/generate_protos.py --check   # exit 1 and name the files if they are stale
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"
STUBS = PROTO_ROOT / "kvferry" / "v1"
TOOLS = ROOT / ".venv-protos"
PINS = ("grpcio-tools==1.62.3", "mypy-protobuf==3.6.0", "setuptools<81")


def tool_environment() -> Path:
    """Return the bin folder of the generator's environment, made on first use."""
    stamp = TOOLS / "pins.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(PINS):
        venv.create(TOOLS, with_pip=True, clear=True)
        subprocess.run([TOOLS / "bin" / "pip", "install", "--quiet", *PINS], check=True)
        stamp.write_text("\n".join(PINS))
    return TOOLS / "bin"


def generate(target: Path) -> None:
    """Write all stubs below `target`; files of a proto without a service get no gRPC stub."""
    tools = tool_environment()
    names = sorted(path.relative_to(PROTO_ROOT).as_posix() for path in STUBS.glob("*.proto"))
    subprocess.run(
        [
            tools / "python",
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTO_ROOT}",
            f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_grpc_out=quiet:{target}",
            *names,
        ],
        cwd=PROTO_ROOT,
        check=True,
    )
    for name in names:
        if "\nservice " not in (PROTO_ROOT / name).read_text():
            for suffix in ("_pb2_grpc.py", "_pb2_grpc.pyi"):
                (target / name.replace(".proto", suffix)).unlink()


def stubs_in(folder: Path) -> dict[str, bytes]:
    """Return the stubs of a folder by file name."""
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2*.py*")}


def main() -> int:
    """Write or check; the exit status is 1 if stubs are stale."""
    parser = argparse.ArgumentParser(description="Generate the stubs of the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = stubs_in(Path(scratch) / "kvferry" / "v1")
    committed = stubs_in(STUBS)
    stale = sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    if check:
        for name in stale:
            print(f"stale: proto/kvferry/v1/{name}; run `make protos`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        if name in fresh:
            (STUBS / name).write_bytes(fresh[name])
        else:
            (STUBS / name).unlink()
        print(f"wrote proto/kvferry/v1/{name}" if name in fresh else f"removed {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
