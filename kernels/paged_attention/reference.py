"""The definition of paged_attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def paged_attention(q: Tensor, cache: Tensor, read_slots: Tensor, bias: Tensor, kv_heads: int) -> Tensor:
    """One query head after the other, in float64. cache [S, 2, kv_heads, head_dim]; -> [B * W, heads * head_dim]."""
    batch, width, heads, head_dim = q.shape
    group = heads // kv_heads
    out = torch.empty(batch, width, heads, head_dim, dtype=q.dtype, device=q.device)
    for b in range(batch):
        slots = read_slots[b].tolist()
        for w in range(width):
            seen = [t for t in range(len(slots)) if bias[b, 0, w, t] == 0]
            for h in range(heads):
                keys = torch.stack([cache[slots[t], 0, h // group] for t in seen]).double()
                values = torch.stack([cache[slots[t], 1, h // group] for t in seen]).double()
                weights = torch.softmax(keys @ q[b, w, h].double() / math.sqrt(head_dim), dim=0)
                out[b, w, h] = (weights @ values).to(q.dtype)
    return out.view(batch * width, heads * head_dim)
