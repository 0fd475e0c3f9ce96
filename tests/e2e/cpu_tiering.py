"""vLLM's tiered KV offloading on a CPU engine, which vLLM itself refuses.

The worker copies between two host memories. Loaded by vLLM through `spec_module_path`. Only the
worker differs from vLLM's own spec; manager, CPU tier, region and secondary tiers are vLLM's.
Imports vllm and torch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from . import step_times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class BlockPair(NamedTuple):
    """One block of the engine's KV cache and its place in a chunk of the region."""

    group: int
    block: int
    chunk: int
    place: int


class CopyingWorker(OffloadingWorker):
    """Moves blocks between the engine's KV cache and the region, at once, on the calling thread.

    Args:
        kv_caches: the engine's KV cache tensors, by group.
        blocks_per_chunk: KV blocks in one chunk.
        region: the shared memory of the CPU tier.
    """

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._group_tensors = kv_caches.group_data_refs
        self._cache: list[torch.Tensor] = []
        self._chunks: list[torch.Tensor] = []
        for each in kv_caches.tensors:
            self._cache.append(each.tensor.view(torch.int8).view(-1, each.page_size_bytes))
            self._chunks.append(
                region.create_next_worker_view(each.page_size_bytes * blocks_per_chunk)
            )
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, to_region=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, to_region=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Every job has ended when its submission returns."""

    def shutdown(self) -> None:
        self._cache.clear()
        self._chunks.clear()
        self._region.cleanup()

    def _copy(self, job_id: int, cache_spec: Any, region_spec: Any, *, to_region: bool) -> bool:
        began, moved = time.perf_counter(), 0
        for pair in self._pairs(cache_spec, region_spec):
            for ref in self._group_tensors[pair.group]:
                cache, chunks = self._cache[ref.tensor_idx], self._chunks[ref.tensor_idx]
                start = pair.place * cache.shape[1]
                in_cache = cache[pair.block, : ref.page_size_bytes]
                in_region = chunks[pair.chunk, start : start + ref.page_size_bytes]
                source, target = (in_cache, in_region) if to_region else (in_region, in_cache)
                target.copy_(source)
                moved += ref.page_size_bytes
        seconds = time.perf_counter() - began
        self._finished.append(TransferResult(job_id, True, moved, seconds))
        return True

    def _pairs(self, cache_spec: Any, region_spec: Any) -> Iterator[BlockPair]:
        blocks, chunks = iter(cache_spec.block_ids), 0
        for group, (count, first) in enumerate(
            zip(cache_spec.group_sizes, cache_spec.block_indices, strict=True)
        ):
            if not count:
                continue
            skipped = first % self._blocks_per_chunk
            for position in range(skipped, skipped + count):
                chunk, place = divmod(position, self._blocks_per_chunk)
                slot = int(region_spec.block_ids[chunks + chunk])
                yield BlockPair(group, int(next(blocks)), slot, place)
            chunks += -(-(skipped + count) // self._blocks_per_chunk)


class CPUEngineTieringSpec(TieringOffloadingSpec):
    """vLLM's tiering, with a worker that a CPU engine can have.

    The option `step_times`, a path, has EngineCore's steps recorded there.
    """

    def get_manager(self) -> Any:
        path = self.extra_config.get("step_times")
        if self._manager is None and path:
            step_times.record(Path(path))
        return super().get_manager()

    def get_worker(self, kv_caches: Any) -> CopyingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyingWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
