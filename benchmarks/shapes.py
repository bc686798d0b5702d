"""Checkpoints of published shapes with random weights, in the layouts found on hubs: bf16, sharded, tied or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from specmatrix.matrix.zoo.registry import resolve_path

SHARD_LAYERS: Final = 8
# Metadata that transformers requires in a file.
METADATA: Final = {"format": "pt"}
DRAFT_VOCAB: Final = 32_000
# The rope_scaling of Llama 3.1 and 3.2.
ROPE: Final = {
    "rope_type": "llama3",
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


def write_target(folder: Path, shape: LlamaShape, device: str) -> Path:
    """Write a target's checkpoint with the zoo's tokenizer. The weights are deterministic per kind of device."""
    _begin(folder, _config(shape, "LlamaForCausalLM"))
    draw = _Draw(device)
    top = {"model.embed_tokens.weight": draw(shape.vocab, shape.hidden), "model.norm.weight": draw.ones(shape.hidden)}
    if not shape.tied:
        top["lm_head.weight"] = draw(shape.vocab, shape.hidden)
    shards = [top]
    for start in range(0, shape.layers, SHARD_LAYERS):
        layers = range(start, min(start + SHARD_LAYERS, shape.layers))
        shards.append(dict(pair for i in layers for pair in _layer(f"model.layers.{i}", shape, shape.hidden, draw)))
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: tensor.cpu() for name, tensor in shard.items()}, folder / file, METADATA)
        names |= dict.fromkeys(shard, file)
    index = json.dumps({"metadata": {}, "weight_map": names})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return folder


def write_frame(folder: Path, shape: LlamaShape) -> Path:
    """Write a target's checkpoint without tensors, for weights that are generated on their device."""
    _begin(folder, _config(shape, "LlamaForCausalLM"))
    save_file({}, folder / "model.safetensors", METADATA)
    return folder


def write_eagle3(folder: Path, target: LlamaShape, device: str) -> Path:
    """Write a one-layer EAGLE-3 head over three hidden states of the target, with its own vocabulary."""
    shape, draw = replace(target, layers=1), _Draw(device)
    states = [2, target.layers // 2, target.layers - 3]
    config = _config(shape, "LlamaForCausalLMEagle3") | {
        "draft_vocab_size": min(DRAFT_VOCAB, target.vocab),
        "target_hidden_size": target.hidden,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": states, "use_aux_hidden_state": True},
    }
    _begin(folder, config)
    rows = int(str(config["draft_vocab_size"]))
    weights = {
        **dict(_layer("midlayer", shape, 2 * shape.hidden, draw)),
        "midlayer.hidden_norm.weight": draw.ones(shape.hidden),
        "norm.weight": draw.ones(shape.hidden),
        "fc.weight": draw(shape.hidden, 3 * shape.hidden),
        "lm_head.weight": draw(rows, shape.hidden),
        "d2t": torch.arange(rows) * ((target.vocab - rows) // rows),
    }
    save_file({name: tensor.cpu() for name, tensor in weights.items()}, folder / "model.safetensors", METADATA)
    return folder


class _Draw:
    """Random matrices and vectors of ones, bf16."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(1)

    def __call__(self, *size: int) -> Tensor:
        made = torch.randn(size, device=self.device, dtype=torch.bfloat16, generator=self._generator)
        return made.mul_(0.02)

    def ones(self, size: int) -> Tensor:
        return torch.ones(size, device=self.device, dtype=torch.bfloat16)


def _layer(prefix: str, shape: LlamaShape, width: int, draw: _Draw) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a decoder layer whose q, k and v read rows of `width`."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (shape.inner, hidden),
        "mlp.up_proj": (shape.inner, hidden),
        "mlp.down_proj": (hidden, shape.inner),
    }
    for name, size in sizes.items():
        yield f"{prefix}.{name}.weight", draw(*size)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{name}.weight", draw.ones(hidden)


def _config(shape: LlamaShape, architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": ROPE,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
    }


def _begin(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(resolve_path("llama-mini") / "tokenizer.json", folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
