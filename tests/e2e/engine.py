"""A real vLLM engine that does what it is told: `python -m tests.e2e.engine '{"model": ..., ...}'`.

Reads one JSON command a line from standard input, answers each with `RESULT {...}` on a line of its
own, and ends with its input. In between it is alive and can be looked at. Imports vllm.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams, __version__
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.reader import get_metrics_snapshot

from .engine_client import FRESH_NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

METRIC_PREFIXES = ("vllm:external_prefix_cache", "vllm:kv_offload")
VOCABULARY = range(3, 512)
COMPANION = {"prompt_tokens": 100, "answer_tokens": 400}
COMPANION_NUMBER = 10_000
FRESH_NUMBERS = itertools.count(FRESH_NUMBER)
REQUEST_NUMBERS = itertools.count()
ADAPTERS: dict[str, int] = {}
"""Number of each adapter's directory, in the order in which they were asked for."""


def build(request: dict[str, Any]) -> AsyncLLM:
    """An engine whose CPU tier has the asked secondary tiers."""
    offload = {
        "spec_name": "CPUEngineTieringSpec",
        "spec_module_path": "tests.e2e.cpu_tiering",
        "cpu_bytes_to_use": request["cpu_bytes"],
        "secondary_tiers": request["tiers"],
        "step_times": request["step_times"],
    }
    defaults = {"max_model_len": 2048, "max_num_batched_tokens": 2048, "enforce_eager": True}
    arguments = defaults | request["arguments"]
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=request["model"],
            skip_tokenizer_init=True,
            max_num_seqs=4,
            enable_prefix_caching=True,
            disable_log_stats=False,
            seed=0,
            kv_transfer_config=KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config=offload,
            ),
            **arguments,
        )
    )


async def answer(
    llm: AsyncLLM, number: int, load: dict[str, Any], rank: int | None
) -> dict[str, Any]:
    """The greedy answer to the random prompt of that number, where it came from, how long it took.

    Times are in seconds; `began` and `ended` are on the machine's monotonic clock.
    """
    source = random.Random(number)
    prompt = [source.choice(VOCABULARY) for _ in range(load["prompt_tokens"])]
    sampling = SamplingParams(
        temperature=0, max_tokens=load["answer_tokens"], ignore_eos=True, detokenize=False
    )
    began = time.monotonic()
    first, last = None, None
    lora = adapter_request(load["adapter"])
    async for output in llm.generate(
        {"prompt_token_ids": prompt},
        sampling,
        f"request-{next(REQUEST_NUMBERS)}",
        lora_request=lora,
        data_parallel_rank=rank,
    ):
        first, last = first or time.monotonic(), output
    if last is None or first is None:
        raise RuntimeError(f"no answer to prompt {number}")
    return {
        "number": number,
        "tokens": list(last.outputs[0].token_ids),
        "cached_tokens": last.num_cached_tokens,
        "began": began,
        "first_token_seconds": first - began,
        "ended": time.monotonic(),
    }


def adapter_request(path: str) -> LoRARequest | None:
    """A request for the adapter in a directory; its name says nothing about the directory."""
    if not path:
        return None
    number = ADAPTERS.setdefault(path, len(ADAPTERS) + 1)
    return LoRARequest(f"adapter-{number}", number, path)


async def work(llm: AsyncLLM, load: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer the prompts of a load, `streams` at a time; over and over while `seconds` last."""
    end = time.monotonic() + load["seconds"]
    numbers = _numbers(load["numbers"], end)

    async def stream() -> list[dict[str, Any]]:
        return [await answer(llm, number, load, load["replica"]) for number in numbers]

    async def fresh_stream() -> list[dict[str, Any]]:
        answers = []
        while load["fresh"] and time.monotonic() < end:
            answers.append(await answer(llm, next(FRESH_NUMBERS), load, load["replica"]))
        return answers

    companion = asyncio.create_task(_accompany(llm, load)) if load["companion"] else None
    streams = await asyncio.gather(fresh_stream(), *(stream() for _ in range(load["streams"])))
    if companion:
        companion.cancel()
    return sorted(itertools.chain(*streams), key=lambda each: float(each["ended"]))


async def _accompany(llm: AsyncLLM, load: dict[str, Any]) -> None:
    """Decode without a pause, from prompts that are too short for any chunk."""
    for number in itertools.count(COMPANION_NUMBER):
        await answer(llm, number, load | COMPANION, load["replica"])


def _numbers(numbers: list[int], end: float) -> Iterator[int]:
    yield from numbers
    while time.monotonic() < end:
        for number in numbers:
            if time.monotonic() >= end:
                return
            yield number


def metrics() -> dict[str, float]:
    """The engine's counters and gauges of offloading that are not zero, by name and labels."""
    found: dict[str, float] = {}
    for each in get_metrics_snapshot():
        value = getattr(each, "value", None)
        if value and each.name.startswith(METRIC_PREFIXES):
            labels = {k: v for k, v in each.labels.items() if k != "model_name"}
            found[f"{each.name}{labels or ''}"] = value
    return found


async def serve(request: dict[str, Any]) -> None:
    """Do what standard input says, until its end."""
    llm = build(request)
    try:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answers = await work(llm, json.loads(line))
            result = {"vllm_version": __version__, "answers": answers, "metrics": metrics()}
            print(f"RESULT {json.dumps(result)}", flush=True)  # noqa: T201
    finally:
        llm.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
