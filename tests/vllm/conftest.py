"""A real TieringOffloadingManager on a real region, with kvferry as its only secondary tier.

These tests need vLLM and are skipped where it isn't installed. They run on a CPU-only
machine: no worker, no GPU copy; the tests write the region themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import secrets
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.scripted import ScriptedDaemon

HAS_VLLM = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]
if HAS_VLLM:
    with warnings.catch_warnings():  # vLLM and torch warn about themselves while they load.
        warnings.simplefilter("ignore")
        import numpy as np
        import vllm.v1.kv_offload.tiering.spec  # noqa: F401

        import kvferry_client.vllm_tier  # noqa: F401
CHUNK_BYTES = 8192


def offloading_config(tiers: list[dict[str, Any]], **changes: Any) -> Any:
    """The normalized config of a small model, as vLLM's connector builds it."""
    from vllm.v1.kv_offload import config as c

    group = {"tokens_per_block": 16, "layer_names": ("layer.0", "layer.1"), "group_id": 0}
    values: dict[str, Any] = {
        "groups": (known(c.OffloadingGroupConfig, group),),
        "worker_kv_bytes_per_block": CHUNK_BYTES,
        "enable_kv_cache_events": True,
        "extra_config": {"cpu_bytes_to_use": 64 * CHUNK_BYTES, "secondary_tiers": tiers},
        "engine_id": secrets.token_hex(8),
        "model": c.OffloadingModelConfig("org/model@r=1+x y", "bfloat16"),
        "cache": c.OffloadingCacheConfig(16, 1),
        "parallel": parallel(),
        "kv_cache_layout": "LBNHC",
        **changes,
    }
    return known(c.OffloadingConfig, values)


def parallel(**changes: Any) -> Any:
    """The parallel config of a single worker."""
    from vllm.v1.kv_offload import config as c

    sizes = dict.fromkeys(["world_size", "tp_size", "pp_size", "pcp_size", "dcp_size"], 1)
    replicas = {"data_parallel_index": 0, "data_parallel_size": 1, "data_parallel_rank_local": None}
    values = {"rank": 0, **sizes, **replicas, "is_parallelism_agnostic": True, **changes}
    return known(c.OffloadingParallelConfig, values)


def known(config_class: Any, values: dict[str, Any]) -> Any:
    """An object of a dataclass, without the fields that this vLLM does not have yet."""
    names = {field.name for field in dataclasses.fields(config_class)}
    return config_class(**{name: value for name, value in values.items() if name in names})


class Engine:
    """The scheduler's side of vLLM: one manager, driven step by step."""

    def __init__(self, tiers: list[dict[str, Any]], **changes: Any) -> None:
        from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

        self.spec = TieringOffloadingSpec(offloading_config(tiers, **changes))
        self.manager: Any = self.spec.get_manager()
        self.tier = self.manager.secondary_tiers[0]
        self.rows = np.asarray(self.manager.primary_tier.get_kv_memoryview())
        self.chunk_bytes = int(self.rows.shape[1])

    def request(self, name: str) -> Any:
        """Begin a request."""
        from vllm.v1.kv_offload.base import ReqContext

        context = ReqContext(req_id=name)
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        """End a scheduler step."""
        from vllm.v1.kv_offload.base import ScheduleEndContext

        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def step_until(self, condition: Callable[[], object], timeout: float = 20.0) -> None:
        """Go on stepping until `condition` holds."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, "condition did not come true"
            self.step()
            time.sleep(0.01)

    def store(self, keys: list[bytes], context: Any, byte: int) -> None:
        """Do what a GPU store does: prepare, write the slots, complete (which cascades)."""
        output = self.manager.prepare_store(keys, context)
        for slot in self.slots(output.store_spec):
            self.rows[slot] = byte
        self.manager.complete_store(keys, context)

    def slots(self, spec: Any) -> list[int]:
        """The slots of a load or store spec; the name changed in 0.30."""
        found = spec.chunk_ids if hasattr(spec, "chunk_ids") else spec.block_ids
        return [int(slot) for slot in found]

    def settle(self) -> None:
        """Step until no job is open."""
        self.step_until(lambda: not self.manager._jobs)

    def lookup(self, key: bytes, context: Any, timeout: float = 20.0) -> str:
        """Step until the lookup has a final answer: HIT or MISS."""
        answers: list[str] = []

        def answered() -> bool:
            answers.append(self.manager.lookup(key, context).name)
            return answers[-1] in ("HIT", "MISS")

        self.step_until(answered, timeout)
        return answers[-1]

    def forget(self) -> None:
        """Drop everything from the CPU tier, as sleeping does."""
        self.manager.reset_cache()
        with contextlib.suppress(AttributeError):
            self.manager.on_reset_flushed()


@contextlib.contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collect what the client logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kvferry_client").addHandler(handler)
    yield lines
    logging.getLogger("kvferry_client").removeHandler(handler)


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="kvf") as name:
        yield Path(name)


@pytest.fixture
def make_engine(socket_dir: Path) -> Iterator[Callable[..., Engine]]:
    """Makes engines whose tier looks for its daemon in the test's directory."""
    made: list[Engine] = []

    def make(*, wait: bool = True, options: dict[str, Any] | None = None, **changes: Any) -> Engine:
        from kvferry_client.vllm_plugin import register

        register()
        tier = {"type": "kvferry", "socket_dir": str(socket_dir), "after_reset": "keep"}
        engine = Engine([tier | (options or {})], **changes)
        made.append(engine)
        if wait:
            assert engine.tier._client.wait_attached(10)
        return engine

    yield make
    for engine in made:
        del engine.rows
        engine.manager.shutdown()


@pytest.fixture
def daemon(socket_dir: Path) -> Iterator[ScriptedDaemon]:
    made = ScriptedDaemon(socket_dir).start()
    yield made
    made.release()
    made.die()
