"""Which engines share objects, and how fine-tunes are told apart."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry_client.fingerprint import find_model, weights_fingerprint
from kvferry_client.namespace import make_namespace, offloading_fields


def config() -> Any:
    return SimpleNamespace(
        groups=(SimpleNamespace(tokens_per_block=16, layer_names=("a", "b"), group_id=0),),
        worker_kv_bytes_per_block=4096,
        model=SimpleNamespace(name="org/model", dtype="bfloat16"),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=4),
        parallel=SimpleNamespace(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            is_parallelism_agnostic=True,
        ),
        replicated_layout=False,
        canonical_layout=False,
        kv_cache_layout="LBNHC",
        engine_id="random",
    )


def name(
    spec: Any, slot_bytes: int = 4096, environment: dict[str, str] | None = None, **changes: Any
) -> str:
    values: dict[str, Any] = {
        "rank": spec.parallel.rank,
        "weights": "w",
        "model_revision": "",
        "cache_epoch": "",
        **changes,
    }
    return make_namespace(offloading_fields(spec, slot_bytes, environment or {}), **values)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.name", "org/other"),
        ("model.dtype", "fp8"),
        ("cache.tokens_per_hash", 32),
        ("cache.blocks_per_chunk", 8),
        ("parallel.world_size", 2),
        ("parallel.tp_size", 2),
        ("parallel.pp_size", 2),
        ("parallel.pcp_size", 2),
        ("parallel.dcp_size", 2),
        ("parallel.rank", 1),
        ("parallel.is_parallelism_agnostic", False),
        ("worker_kv_bytes_per_block", 8192),
        ("replicated_layout", True),
        ("canonical_layout", True),
        ("kv_cache_layout", "LBHNC"),
    ],
)
def test_K01_any_difference_is_another_namespace(path: str, value: Any) -> None:
    base, other = config(), copy.deepcopy(config())
    target = other
    *parents, last = path.split(".")
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, last, value)
    assert name(other) != name(base)


def test_K01_groups_runner_size_weights_and_operator_count_too() -> None:
    base = config()
    other = copy.deepcopy(base)
    other.groups = (SimpleNamespace(tokens_per_block=16, layer_names=("a",), group_id=0),)
    names = {
        name(base),
        name(other),
        name(base, 8192),
        name(base, environment={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
        name(base, weights="x"),
        name(base, model_revision="r"),
        name(base, cache_epoch="1"),
    }
    assert len(names) == 7


def test_the_engine_id_does_not_count() -> None:
    other = config()
    other.engine_id = "different"
    assert name(other) == name(config())


@pytest.mark.parametrize(
    "model", ["org/m@r=1+x y", "../../etc", "", "." * 300, "é/" * 200, "x" * 500]
)
def test_K05_K06_one_clean_component(model: str) -> None:
    spec = config()
    spec.model.name = model
    made = name(spec)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,200}", made)
    assert made.strip(".")
    assert not made.startswith(".")


def safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    header, position = {}, 0
    for tensor, data in tensors.items():
        end = position + len(data)
        header[tensor] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    safetensors(folder / "model.safetensors", {f"t{n}": bytes([n]) * 50_000 for n in range(20)})
    (folder / "README.md").write_text("not a weight")
    return folder


def test_fine_tunes_of_equal_shape_differ(model: Path) -> None:
    before = weights_fingerprint(model)
    assert before == weights_fingerprint(model)
    tensors = {f"t{n}": bytes([n]) * 50_000 for n in range(20)}
    for changed in ("t0", "t7", "t19"):
        safetensors(model / "model.safetensors", {**tensors, changed: b"\xff" * 50_000})
        assert weights_fingerprint(model) != before
    safetensors(model / "model.safetensors", tensors)
    assert weights_fingerprint(model) == before
    (model / "README.md").write_text("changed")
    assert weights_fingerprint(model) == before


def test_config_names_and_sizes_count(model: Path) -> None:
    seen = {weights_fingerprint(model)}
    (model / "config.json").write_text('{"hidden_size": 9}')
    seen.add(weights_fingerprint(model))
    (model / "model.safetensors").rename(model / "other.safetensors")
    seen.add(weights_fingerprint(model))
    (model / "extra.bin").write_bytes(b"1" * 10_000)
    seen.add(weights_fingerprint(model))
    (model / "extra.bin").write_bytes(b"1" * 9_999 + b"2")
    seen.add(weights_fingerprint(model))
    assert len(seen) == 5


def test_odd_files_do_not_stop_it(model: Path) -> None:
    for content in (
        b"",
        b"\xff" * 8,
        (5).to_bytes(8, "little") + b"{nope",
        b"\x02" + bytes(7) + b"[]",
    ):
        (model / "model.safetensors").write_bytes(content)
        assert weights_fingerprint(model)


def test_no_weights_is_an_empty_fingerprint(tmp_path: Path) -> None:
    assert weights_fingerprint(tmp_path) == ""


def test_models_are_found_in_the_hub_cache(tmp_path: Path, model: Path) -> None:
    assert find_model(str(model), "", {}) == model
    assert find_model("", "", {}) is None
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee\n")
    for environment in (
        {"HF_HOME": str(tmp_path)},
        {"HF_HUB_CACHE": str(tmp_path / "hub")},
    ):
        assert find_model("org/name", "", environment) == snapshot
        assert find_model("org/name", "c0ffee", environment) == snapshot
        assert find_model("org/name", "v2", environment) is None
        assert find_model("org/absent", "", environment) is None
