"""Writes a tiny Llama with random weights, always the same ones: `make_model.py DIRECTORY`.

Random, not vLLM's `dummy` weights: with those the output hardly depends on the KV cache, and wrong
KV would not show. Imports torch and safetensors.
"""

from __future__ import annotations

import json
import sys
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


def weights() -> dict[str, torch.Tensor]:
    """All tensors of the model, from a fixed seed."""
    source = torch.Generator().manual_seed(0)

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


def main() -> None:
    """Write config.json and model.safetensors."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(weights(), directory / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
