"""Drafts as their formulas say: one forward over a whole sequence, no KV kept, in plain torch.

Written from the checkpoint layouts, not from the engine: projections as stored, rotary positions in halves, norms
spelled out. T tokens of one sequence; weights by checkpoint name; `c` is config.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the weights in float32."""
    weights = load_file(folder / "model.safetensors")
    return json.loads((folder / "config.json").read_text()), {
        name: w.float() if w.is_floating_point() else w for name, w in weights.items()
    }


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [T, heads, d]: halves (a, b) turn to (a cos - b sin, b cos + a sin)."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() / theta ** (torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.split(half, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def mix(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """q [T, heads, d], k and v [S, kv_heads, d], seen bool [T, S] -> [T, heads * d]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("hts,shd->thd", weights, v).flatten(1)


def split(x: Tensor, d: int) -> Tensor:
    return x.view(x.shape[0], -1, d)


def gated(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    gate, up = x @ w[f"{prefix}gate_proj.weight"].t(), x @ w[f"{prefix}up_proj.weight"].t()
    return (torch.nn.functional.silu(gate) * up) @ w[f"{prefix}down_proj.weight"].t()


def head_dim(c: dict[str, Any]) -> int:
    return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])


def llama_layer(x: Tensor, h: Tensor, w: dict[str, Tensor], prefix: str, c: dict[str, Any]) -> Tensor:
    """One causal layer; x [T, H] the stream, h what the q, k and v projections read."""
    d, eps, positions = head_dim(c), c["rms_norm_eps"], torch.arange(len(x))
    q, k, v = (split(h @ w[f"{prefix}self_attn.{n}_proj.weight"].t(), d) for n in "qkv")
    theta = c.get("rope_theta") or c.get("rope_parameters", {}).get("rope_theta", 10000.0)
    seen = torch.ones(len(x), len(x)).tril().bool()
    mixed = mix(rope(q, positions, theta), rope(k, positions, theta), v, seen)
    x = x + mixed @ w[f"{prefix}self_attn.o_proj.weight"].t()
    return x + gated(rms(x, w[f"{prefix}post_attention_layernorm.weight"], eps), w, f"{prefix}mlp.")


class WholeEagle:
    """EAGLE-1/2. embedding [V, H] and head [V, H] are the target's."""

    def __init__(self, folder: Path, embedding: Tensor, head: Tensor) -> None:
        self.c, self.w = read(folder)
        self.embedding, self.head = embedding, head

    def run(self, tokens: Tensor, states: list[Tensor]) -> Tensor:
        """tokens [T] (already the shifted ones); states: T rows of what goes in beside them -> [T, H]."""
        pair = torch.cat((self.embedding[tokens], torch.stack(states)), 1)
        x = pair @ self.w["fc.weight"].t() + self.w.get("fc.bias", 0)
        for i in range(self.c["num_hidden_layers"]):
            h = rms(x, self.w[f"layers.{i}.input_layernorm.weight"], self.c["rms_norm_eps"]) if i else x
            x = llama_layer(x, h, self.w, f"layers.{i}.", self.c)
        return x

    def logits(self, out: Tensor) -> Tensor:
        return out @ self.head.t()


class WholeEagle3:
    """EAGLE-3. Rows of target width are fused, rows of draft width are carried ones."""

    def __init__(self, folder: Path, embedding: Tensor, head: Tensor) -> None:
        self.c, self.w = read(folder)
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        self.head = self.w.get("lm_head.weight", head)

    def run(self, tokens: Tensor, states: list[Tensor]) -> Tensor:
        w, eps = self.w, self.c["rms_norm_eps"]
        x = torch.stack([s @ w["fc.weight"].t() if len(s) != self.c["hidden_size"] else s for s in states])
        word = rms(self.embedding[tokens], w["midlayer.input_layernorm.weight"], eps)
        normed = rms(x, w["midlayer.hidden_norm.weight"], eps)
        h, x = torch.cat((word, normed), 1), normed if self.c.get("norm_before_residual") else x
        x = llama_layer(x, h, w, "midlayer.", self.c)
        for i in range(1, self.c["num_hidden_layers"]):
            x = llama_layer(x, rms(x, w[f"layers.{i}.input_layernorm.weight"], eps), w, f"layers.{i}.", self.c)
        return x

    def logits(self, out: Tensor) -> Tensor:
        """Over the target's ids: -inf where the draft has no such id."""
        own = rms(out, self.w["norm.weight"], self.c["rms_norm_eps"]) @ self.head.t()
        if "d2t" not in self.w:
            return own
        ids = torch.arange(len(self.w["d2t"])) + self.w["d2t"]
        return torch.full((*own.shape[:-1], self.c["vocab_size"]), float("-inf")).index_copy_(-1, ids, own)
