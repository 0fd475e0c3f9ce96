"""Engines whose KV differs never share an object: one field at a time, weights and adapters too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload import config as c

from kvferry_client.vllm_lora import adapter_fingerprint, hash_adapters_by_content
from tests.client.scripted import ScriptedDaemon

from .conftest import Engine, known, parallel

pytestmark = pytest.mark.vllm
MakeEngine = Callable[..., Engine]
GROUP = {"tokens_per_block": 16, "layer_names": ("layer.0", "layer.1"), "group_id": 0}
FIELDS: dict[str, dict[str, Any]] = {
    "dtype": {"model": c.OffloadingModelConfig("org/model@r=1+x y", "fp8")},
    "model": {"model": c.OffloadingModelConfig("org/other", "bfloat16")},
    "block size": {"groups": (known(c.OffloadingGroupConfig, {**GROUP, "tokens_per_block": 32}),)},
    "layers": {"groups": (known(c.OffloadingGroupConfig, {**GROUP, "layer_names": ("x",)}),)},
    "tokens per hash": {"cache": c.OffloadingCacheConfig(32, 1)},
    "chunk": {"cache": c.OffloadingCacheConfig(16, 2)},
    "layout": {"kv_cache_layout": "NHD"},
    "tp": {"parallel": parallel(tp_size=2, world_size=2)},
    "rank": {"parallel": parallel(rank=1)},
    "revision": {"options": {"model_revision": "other"}},
    "epoch": {"options": {"cache_epoch": "2"}},
}


def namespace(daemon: ScriptedDaemon, make_engine: MakeEngine, **changes: Any) -> str:
    engine = make_engine(**changes)
    engine_id = engine.spec.config.engine_id
    [found] = [s.request.namespace for s in daemon.sessions if s.request.engine_id == engine_id]
    return str(found)


def test_K03_the_caches_dtype_is_in_the_names(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    dtypes = ("bfloat16", "fp8", "fp8_e5m2")
    found = {
        namespace(daemon, make_engine, model=c.OffloadingModelConfig("org/m", dtype))
        for dtype in dtypes
    }
    assert len(found) == len(dtypes)


@pytest.mark.parametrize("name", FIELDS)
def test_K01_one_differing_field_is_another_namespace(
    daemon: ScriptedDaemon, make_engine: MakeEngine, name: str
) -> None:
    if name == "layout" and "kv_cache_layout" not in c.OffloadingConfig.__dataclass_fields__:
        pytest.skip("this vLLM does not tell the layout")
    plain = namespace(daemon, make_engine)
    assert namespace(daemon, make_engine) == plain
    assert namespace(daemon, make_engine, **FIELDS[name]) != plain


def write_model(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    data = bytes((seed * 7 + n) % 251 for n in range(40_000))
    header = b'{"w":{"dtype":"U8","shape":[40000],"data_offsets":[0,40000]}}'
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    os.utime(file, (1, 1))


def test_two_models_mounted_at_one_path_one_after_the_other_never_meet(
    daemon: ScriptedDaemon, make_engine: MakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    model = {"model": c.OffloadingModelConfig(str(path), "bfloat16")}
    write_model(path, 1)
    first = namespace(daemon, make_engine, **model)
    write_model(path, 2)
    assert namespace(daemon, make_engine, **model) != first
    write_model(path, 1)
    assert namespace(daemon, make_engine, **model) == first


def test_a_cache_reset_begins_an_epoch_of_its_own(
    daemon: ScriptedDaemon, make_engine: MakeEngine
) -> None:
    engine = make_engine(options={"after_reset": "new_epoch"})
    before = daemon.sessions[0].request
    engine.forget()
    engine.step_until(lambda: [s for s in daemon.sessions if s.request != before])
    after = daemon.sessions[-1].request
    assert after.namespace != before.namespace
    assert before.vllm_namespace
    assert after.vllm_namespace == ""


def test_lora_adapters_are_hashed_by_content(tmp_path: Path) -> None:
    hash_adapters_by_content()
    hash_adapters_by_content()

    def keys() -> list[Any]:
        lora = SimpleNamespace(lora_name="a", lora_path=str(tmp_path / "adapter"), adapter_id=1)
        request: Any = SimpleNamespace(lora_request=lora)
        found: list[Any] = kv_cache_utils._gen_lora_extra_hash_keys(request)
        assert found == kv_cache_utils._gen_lora_extra_hash_keys(request)
        return found

    write_model(tmp_path / "adapter", 1)
    first = keys()
    write_model(tmp_path / "adapter", 2)
    os.utime(tmp_path / "adapter" / "model.safetensors", (2, 2))
    assert keys() != first
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"lora_alpha": 8}')
    second = keys()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"lora_alpha": 16}')
    assert keys() != second
    plain: Any = SimpleNamespace(lora_request=None)
    assert kv_cache_utils._gen_lora_extra_hash_keys(plain) == []


def test_an_adapter_that_is_not_found_shares_with_nobody(tmp_path: Path) -> None:
    unknown = adapter_fingerprint(str(tmp_path / "nowhere"))
    assert unknown.startswith("unknown-")


def test_L06_the_salt_is_in_the_hash() -> None:
    def extra(salt: str | None) -> Any:
        request: Any = SimpleNamespace(
            lora_request=None, cache_salt=salt, mm_features=[], prompt_embeds=None
        )
        keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, 0, 16, 0)
        return keys

    hashes = {
        kv_cache_utils.hash_block_tokens(
            lambda value: repr(value).encode(), b"parent", (1, 2, 3), extra(salt)
        )
        for salt in ("t1", "t2", None)
    }
    assert len(hashes) == 3
