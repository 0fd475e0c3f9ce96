"""What differs between vLLM 0.28 and 0.33, and nothing else. Imports vllm.

| release | difference |
|---|---|
| 0.30 | slots of a job are `chunk_ids`; before, `block_ids` |
| 0.31 | tiers take `backpressure_detector`; results have `transfer_bytes` |
| later than 0.28 | `ReqContext.get_offload_key_position` |
| 0.33 | the `obj` tier's names cover `blocks_per_chunk`; before, they always say 1 |
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.version import __version_tuple__

from kvferry_client.types import JobKind

if TYPE_CHECKING:
    from kvferry_client.tier import FinishedJob

_RESULTS_HAVE_BYTES: Final = "transfer_bytes" in JobResult.__dataclass_fields__
_BASE_PARAMETERS: Final = frozenset(inspect.signature(SecondaryTierManager.__init__).parameters)
_NAMES_COVER_CHUNK_SIZE: Final = (0, 33)


def base_options(backpressure_detector: Any) -> dict[str, Any]:  # noqa: ANN401 - from 0.31 on
    """Return what the base class's constructor takes beyond the common arguments."""
    if "backpressure_detector" in _BASE_PARAMETERS:
        return {"backpressure_detector": backpressure_detector}
    return {}


def chunks(job: Any) -> tuple[tuple[bytes, ...], tuple[int, ...]]:  # noqa: ANN401 - its name varies
    """Return the keys and slots of a job."""
    slots = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
    numbers = slots.tolist() if hasattr(slots, "tolist") else slots
    return tuple(map(bytes, job.keys)), tuple(map(int, numbers))


def job_result(job: FinishedJob) -> JobResult:
    """Return a result with as much as this vLLM wants to know."""
    options: dict[str, Any] = {"transfer_time": job.transfer_seconds}
    if _RESULTS_HAVE_BYTES:
        options["transfer_bytes"] = job.transferred_bytes
    if job.kind is JobKind.LOAD and not job.success and job.good_keys:
        options["successful_keys"] = [OffloadKey(key) for key in job.good_keys]
    return JobResult(job_id=job.job_id, success=job.success, **options)


def key_position(req_context: Any, key: OffloadKey) -> int | None:  # noqa: ANN401 - varies
    """Return the token position where a chunk ends in its request, if vLLM tells."""
    if not hasattr(req_context, "get_offload_key_position"):
        return None
    position: int | None = req_context.get_offload_key_position(key)
    return position


def vllm_namespace(spec: Any) -> str:  # noqa: ANN401 - OffloadingSpec, of any supported version
    """Return the folder, below the prefix, of what the in-process `obj` tier writes."""
    covers_size = tuple(__version_tuple__[:2]) >= _NAMES_COVER_CHUNK_SIZE
    blocks = spec.config.cache.blocks_per_chunk if covers_size else 1
    mapper = FileMapper.from_offloading_spec(
        "", spec, blocks_per_file=blocks, parallel_agnostic=True
    )
    return f"{mapper.base_path.removeprefix('/')}_r{mapper.rank}"
