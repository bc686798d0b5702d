"""Drafts as their formulas say: one forward over a whole sequence, no KV kept, in plain torch.

Written from the checkpoint layouts, not from the engine: projections as stored, rotary positions in halves, norms
spelled out. T tokens of one sequence; weights by checkpoint name; `c` is config.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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


class WholeDFlash:
    """DFLASH: a context of projected target states, and one non-causal block behind it."""

    def __init__(self, folder: Path, embedding: Tensor, head: Tensor) -> None:
        self.c, self.w = read(folder)
        self.embedding, self.head = embedding, head

    def block(self, first: int, width: int, states: Tensor, head: bool = True) -> Tensor:
        """Logits [width, V] of a block whose first token is known, or without the head its hidden states; states
        [L, A * Ht] of all positions before it."""
        c, w, eps = self.c, self.w, self.c["rms_norm_eps"]
        length, d, theta = len(states), head_dim(c), c["rope_theta"]
        context = rms(states @ w["fc.weight"].t(), w["hidden_norm.weight"], eps)
        x = self.embedding[torch.tensor([first] + [c["dflash_config"]["mask_token_id"]] * (width - 1))]
        positions = torch.arange(length + width)
        for i in range(c["num_hidden_layers"]):
            prefix = f"layers.{i}.self_attn."
            a = rms(x, w[f"layers.{i}.input_layernorm.weight"], eps)
            a, finish = self.around(a, f"layers.{i}.attention_conv.")
            everything = torch.cat((context, a))
            q = rms(split(a @ w[f"{prefix}q_proj.weight"].t(), d), w[f"{prefix}q_norm.weight"], eps)
            k = rms(split(everything @ w[f"{prefix}k_proj.weight"].t(), d), w[f"{prefix}k_norm.weight"], eps)
            v = split(everything @ w[f"{prefix}v_proj.weight"].t(), d)
            seen = torch.ones(width, length + width, dtype=torch.bool)
            mixed = mix(rope(q, positions[length:], theta), rope(k, positions, theta), v, seen)
            x = x + finish(mixed @ w[f"{prefix}o_proj.weight"].t())
            a = rms(x, w[f"layers.{i}.post_attention_layernorm.weight"], eps)
            a, finish = self.around(a, f"layers.{i}.mlp_conv.")
            x = x + finish(gated(a, w, f"layers.{i}.mlp."))
        out = rms(x, w["norm.weight"], eps)
        return out @ self.head.t() if head else out

    def around(self, h: Tensor, prefix: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """DFLASH2's convolutions by loops, of a sublayer's input h [width, H] and its output, if it has any."""
        if f"{prefix}base_kernel" not in self.w:
            return h, lambda out: out
        base = self.w[f"{prefix}base_kernel"]
        taps, group = base.shape[1], self.c["dflash_config"]["conv_group_size"]
        own = (h @ self.w[f"{prefix}kernel_projection.weight"].t()).view(len(h), 2, taps, -1)

        def convolve(side: int, x: Tensor) -> Tensor:
            y = torch.zeros_like(x)
            for i in range(len(x)):
                for tap in range(min(taps, i + 1)):
                    y[i] += (base[side, tap] + own[i, side, tap].repeat_interleave(group)) * x[i - tap]
            return y

        return convolve(0, h), lambda out: convolve(1, out)
