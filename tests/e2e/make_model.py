"""Writes a tiny Llama with random weights: `make_model.py DIRECTORY [SEED]`, always the same ones.

With `--adapter` a LoRA adapter for it, random too. Only the weights depend on the seed.

Random, not vLLM's `dummy` weights: with those the output hardly depends on the KV cache, and wrong
KV would not show. Imports torch and safetensors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, INTERMEDIATE, VOCABULARY = 256, 2, 4, 512, 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


ADAPTER_RANK = 8
ADAPTER_CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "model",
    "r": ADAPTER_RANK,
    "lora_alpha": 4 * ADAPTER_RANK,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
}


def weights(seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the model."""
    source = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int, deviation: float) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=source) * deviation
        return values.to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN, 1.0),
        "lm_head.weight": random(VOCABULARY, HIDDEN, 1.0),
        "model.norm.weight": ones(),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for name in "qkvo":
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = random(HIDDEN, HIDDEN, 0.12)
        tensors[f"{layer}.mlp.gate_proj.weight"] = random(INTERMEDIATE, HIDDEN, 0.08)
        tensors[f"{layer}.mlp.up_proj.weight"] = random(INTERMEDIATE, HIDDEN, 0.08)
        tensors[f"{layer}.mlp.down_proj.weight"] = random(HIDDEN, INTERMEDIATE, 0.08)
        tensors[f"{layer}.input_layernorm.weight"] = ones()
        tensors[f"{layer}.post_attention_layernorm.weight"] = ones()
    return tensors


def adapter_weights(seed: int) -> dict[str, torch.Tensor]:
    """All tensors of an adapter."""
    source = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=source) * 0.1).to(torch.bfloat16)

    tensors = {}
    for number in range(LAYERS):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{number}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = random(ADAPTER_RANK, HIDDEN)
            tensors[f"{name}.lora_B.weight"] = random(HIDDEN, ADAPTER_RANK)
    return tensors


def main() -> None:
    """Write a model's or an adapter's config and weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--adapter", action="store_true")
    options = parser.parse_args()
    directory = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    kind, config, made = "model", CONFIG, weights
    if options.adapter:
        kind, config, made = "adapter_model", ADAPTER_CONFIG, adapter_weights
    config_name = "adapter_config.json" if options.adapter else "config.json"
    (directory / config_name).write_text(json.dumps(config, indent=1))
    save_file(made(options.seed), directory / f"{kind}.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
