"""Under naming = "vllm" the in-tree `obj` tier and kvferry read each other's objects.

The in-tree tier names `kv//org_...`; what arrives in the bucket is `kv/org_...` (see core.naming).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_offload.base import make_offload_key

from .conftest import Engine
from .sides import HAS_NIXL, HAS_SERVER, Backend, Side

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not HAS_SERVER, reason="needs the development environment (.venv)"),
    pytest.mark.skipif(not HAS_NIXL, reason="needs nixl for the in-tree tier"),
]
FOLDER = "kv/org_model-1.5_"
KEYS = [make_offload_key(bytes([n]) * 32, group) for n in range(1, 4) for group in (0, 1)]


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with tempfile.TemporaryDirectory(prefix="kvf") as name:
        made = Backend(Path(name))
        yield made
        made.close()


def changes(**more: Any) -> dict[str, Any]:
    from vllm.v1.kv_offload import config as c

    return {"model": c.OffloadingModelConfig("org/model-1.5", "bfloat16"), **more}


def store_all(engine: Engine) -> dict[bytes, bytes]:
    """Store each key with bytes of its own; return them."""
    written = {}
    context = engine.request("writer")
    for number, key in enumerate(KEYS):
        engine.store([key], context, 10 + number)
        written[key] = bytes([10 + number]) * engine.chunk_bytes
    engine.settle()
    engine.manager.on_request_finished(context)
    return written


def load_all(engine: Engine) -> dict[bytes, bytes]:
    """Load each key; return the bytes that arrived."""
    read = {}
    context = engine.request("reader")
    for key in KEYS:
        assert engine.lookup(key, context) == "HIT"
        spec = engine.manager.prepare_load([key], context)
        (slot,) = engine.slots(spec)
        read[key] = bytes(engine.rows[slot])
        engine.manager.complete_load([key], context)
    return read


@pytest.mark.parametrize(("writer", "reader"), [("obj", "kvferry"), ("kvferry", "obj")])
@pytest.mark.parametrize("blocks_per_chunk", [1, 4])
def test_objects_of_one_are_hits_of_the_other(
    backend: Backend, writer: str, reader: str, blocks_per_chunk: int
) -> None:
    from vllm.v1.kv_offload import config as c

    shape = changes(cache=c.OffloadingCacheConfig(16, blocks_per_chunk))
    backend("clear")
    first = Side(writer, backend, "vllm")
    written = store_all(first.engine(**shape))
    names = set(first.objects())
    assert len(names) == len(KEYS)
    assert {name[: len(FOLDER)] for name in names} == {FOLDER}
    first.close()
    second = Side(reader, backend, "vllm")
    assert load_all(second.engine(**shape)) == written
    assert set(second.objects()) == names
    second.close()


def test_both_write_the_same_names_and_bytes(backend: Backend) -> None:
    found = []
    for kind in ("obj", "kvferry"):
        backend("clear")
        side = Side(kind, backend, "vllm")
        store_all(side.engine(**changes()))
        found.append(side.objects())
        side.close()
    assert found[0] == found[1]


def test_under_kvferrys_own_names_the_two_never_meet(backend: Backend) -> None:
    backend("clear")
    first = Side("obj", backend)
    store_all(first.engine(**changes()))
    first.close()
    second = Side("kvferry", backend)
    engine = second.engine(**changes())
    assert engine.lookup(KEYS[0], engine.request("r")) == "MISS"
    second.close()
