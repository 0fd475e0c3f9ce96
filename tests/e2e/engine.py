"""One run of a real vLLM engine: `python -m tests.e2e.engine '{"model": ..., "tier": ..., ...}'`.

Answers one prompt, prints `RESULT {...}` on a line of its own, and stays alive until its standard
input ends, so that it can be looked at. Imports vllm.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from vllm import LLM, SamplingParams, __version__
from vllm.config import KVTransferConfig

METRIC_PREFIXES = ("vllm:external_prefix_cache", "vllm:kv_offload")


def build(model: str, tier: dict[str, Any]) -> LLM:
    """An engine whose CPU tier has one secondary tier."""
    offload = {
        "spec_name": "CPUEngineTieringSpec",
        "spec_module_path": "tests.e2e.cpu_tiering",
        "cpu_bytes_to_use": 64 << 20,
        "secondary_tiers": [tier],
    }
    return LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=False,
        seed=0,
        kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config=offload,
        ),
    )


def answer(llm: LLM, prompt_tokens: int, answer_tokens: int) -> dict[str, Any]:
    """The greedy answer to a fixed random prompt, and how much of the prompt came from outside."""
    source = random.Random(7)
    prompt = [source.randrange(3, 512) for _ in range(prompt_tokens)]
    sampling = SamplingParams(
        temperature=0, max_tokens=answer_tokens, ignore_eos=True, detokenize=False
    )
    [output] = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    return {
        "vllm_version": __version__,
        "cached_tokens": output.num_cached_tokens,
        "tokens": list(output.outputs[0].token_ids),
    }


def metrics(llm: LLM) -> dict[str, float]:
    """The engine's counters and gauges of offloading that are not zero, by name and labels."""
    found: dict[str, float] = {}
    for each in llm.get_metrics():
        value = getattr(each, "value", None)
        if value and each.name.startswith(METRIC_PREFIXES):
            labels = {k: v for k, v in each.labels.items() if k not in ("model_name", "engine")}
            found[f"{each.name}{labels or ''}"] = value
    return found


def main() -> None:
    """Run, report, wait for the end of standard input."""
    request = json.loads(sys.argv[1])
    llm = build(request["model"], request["tier"])
    result = answer(llm, request["prompt_tokens"], request["answer_tokens"])
    print(f"RESULT {json.dumps(result | {'metrics': metrics(llm)})}", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
