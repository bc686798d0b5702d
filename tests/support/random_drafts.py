"""Draft checkpoints with random weights, in their real layouts, for any target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def layer_shapes(
    prefix: str, c: dict[str, Any], front: tuple[str, ...] = ("input_layernorm",), wide: int = 1
) -> Shapes:
    """One Llama layer; front: its norms before attention; wide: widths of the stream that q, k and v read."""
    hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    return {f"{prefix}{norm}.weight": (hidden,) for norm in front} | {
        f"{prefix}self_attn.q_proj.weight": (heads * d, wide * hidden),
        f"{prefix}self_attn.k_proj.weight": (kv_heads * d, wide * hidden),
        f"{prefix}self_attn.v_proj.weight": (kv_heads * d, wide * hidden),
        f"{prefix}self_attn.o_proj.weight": (hidden, heads * d),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
        f"{prefix}mlp.gate_proj.weight": (inner, hidden),
        f"{prefix}mlp.up_proj.weight": (inner, hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, inner),
    }


def eagle_shapes(c: dict[str, Any]) -> Shapes:
    found: Shapes = {"fc.weight": (c["hidden_size"], 2 * c["hidden_size"])}
    for i in range(c["num_hidden_layers"]):
        found |= layer_shapes(f"layers.{i}.", c, ("input_layernorm",) if i else ())
    return found


def eagle3_shapes(c: dict[str, Any], states: int) -> Shapes:
    """Without an embedding and, where draft_vocab_size is absent, without its own head."""
    hidden = c["hidden_size"]
    found: Shapes = {"norm.weight": (hidden,), "fc.weight": (hidden, states * c["target_hidden_size"])}
    found |= layer_shapes("midlayer.", c, ("input_layernorm", "hidden_norm"), wide=2)
    for i in range(1, c["num_hidden_layers"]):
        found |= layer_shapes(f"layers.{i}.", c)
    if "draft_vocab_size" in c:
        found |= {"embed_tokens.weight": (c["vocab_size"], hidden), "lm_head.weight": (c["draft_vocab_size"], hidden)}
    return found


def random_weights(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    """Projections that keep a normed stream's size; norm weights away from 1, so that a forgotten one shows."""
    g = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=g) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=g) * (1.5 / shape[-1] ** 0.5)
        for name, shape in shapes.items()
    }


def save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder
