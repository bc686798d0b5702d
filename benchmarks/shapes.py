"""Checkpoints of published shapes with random weights: a target as transformers writes it, and an EAGLE-3 head."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specmatrix.matrix.zoo.heads import EagleNet, Shared
from specmatrix.matrix.zoo.registry import RECIPES, resolve_path

DRAFT_VOCAB: Final = 32_000
# The positions of Llama 3.1 and 3.2.
ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a Llama model."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    @property
    def step_bytes(self) -> int:
        """Bytes of bf16 weights read by a decode step: all except the embedding, of which it reads one row."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return 2 * (self.layers * (attention + 3 * self.hidden * self.inner) + self.vocab * self.hidden)

    @property
    def token_bytes(self) -> int:
        """Bytes of bf16 KV per token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


SHAPES: Final = {
    "Llama-3.2-1B": LlamaShape(2048, 8192, 16, 32, 8, 64, 128_256, tied=True),
    "Llama-3.1-8B": LlamaShape(4096, 14336, 32, 32, 8, 128, 128_256, tied=False),
}


def write_target(folder: Path, shape: LlamaShape, device: str, shard: str = "5GB") -> Path:
    """Write a target's checkpoint in bf16 with the zoo's tokenizer, in files of at most `shard`. The weights are
    deterministic per kind of device."""
    torch.manual_seed(1)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(llama_config(shape), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=shard)
    shutil.copy(resolve_path("llama-mini") / "tokenizer.json", folder)
    return folder


def llama_config(shape: LlamaShape) -> LlamaConfig:
    """transformers' configuration of a shape, with the position scaling of Llama 3.1 and 3.2."""
    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_parameters=ROPE,
        tie_word_embeddings=shape.tied,
    )


def write_eagle3(folder: Path, target: LlamaShape, device: str) -> Path:
    """Write a one-layer EAGLE-3 head over three hidden states of the target, with its own vocabulary."""
    rows, hidden = min(DRAFT_VOCAB, target.vocab), target.hidden
    config = llama_config(replace(target, layers=1)).to_dict()
    torch.manual_seed(1)
    captured = (2, target.layers // 2, target.layers - 3)
    recipe = replace(RECIPES["llama-mini-eagle3"], config=config, aux_layers=captured, draft_vocab=rows)
    with torch.device(device):
        net = EagleNet(recipe, Shared(torch.empty(0, hidden), torch.empty(0, hidden))).to(torch.bfloat16)
    weights = {name: weight.cpu() for name, weight in net.state_dict().items() if name != "embed_tokens.weight"}
    weights["d2t"] = torch.arange(rows) * ((target.vocab - rows) // rows)
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "torch_dtype": "bfloat16",
        "draft_vocab_size": rows,
        "target_hidden_size": hidden,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": captured,
            "use_aux_hidden_state": True,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(resolve_path("llama-mini") / "tokenizer.json", folder)
    return folder
