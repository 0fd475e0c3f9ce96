"""The namespace of an engine's objects: which engines may share KV. Standard library only.

The digest covers everything that vLLM's FileMapper covers (without merging parallel
layouts) and whatever else changes the bytes under an equal block hash: KV layout, sizes,
model runner, the weights themselves, and what the operator says changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MODEL_CHARS: Final = 120
DIGEST_CHARS: Final = 16
RUNNER_VARIABLE: Final = "VLLM_USE_V2_MODEL_RUNNER"
FORMAT: Final = 1
"""Raised when the bytes of an object change their meaning."""


def offloading_fields(
    config: Any,  # noqa: ANN401 - vLLM's OffloadingConfig, of any supported version
    slot_bytes: int,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Collect what vLLM knows about the bytes of a chunk."""
    parallel = config.parallel
    return {
        "inference_engine": "vllm",
        "model_name": config.model.name,
        "dtype": str(config.model.dtype),
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "groups": [
            {
                "tokens_per_block": group.tokens_per_block,
                "layer_names": list(group.layer_names),
                "group_id": getattr(group, "group_id", index),
            }
            for index, group in enumerate(config.groups)
        ],
        "world_size": parallel.world_size,
        "tp_size": parallel.tp_size,
        "pp_size": parallel.pp_size,
        "pcp_size": parallel.pcp_size,
        "dcp_size": parallel.dcp_size,
        "is_parallelism_agnostic": parallel.is_parallelism_agnostic,
        "worker_kv_bytes_per_block": config.worker_kv_bytes_per_block,
        "replicated_layout": getattr(config, "replicated_layout", False),
        "canonical_layout": getattr(config, "canonical_layout", False),
        "kv_cache_layout": getattr(config, "kv_cache_layout", None),
        "runner": environment.get(RUNNER_VARIABLE, ""),
        "slot_bytes": slot_bytes,
    }


def make_namespace(
    fields: Mapping[str, Any], *, rank: int, weights: str, model_revision: str, cache_epoch: str
) -> str:
    """Return `<model>_<digest>_r<rank>`, one path component of [A-Za-z0-9._-]."""
    covered = {
        **fields,
        "format": FORMAT,
        "weights": weights,
        "model_revision": model_revision,
        "cache_epoch": cache_epoch,
    }
    canonical = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARS]
    model = re.sub(r"[^A-Za-z0-9._-]", "_", str(fields["model_name"])).strip("._")
    return f"{model[-MAX_MODEL_CHARS:] or 'model'}_{digest}_r{rank}"
