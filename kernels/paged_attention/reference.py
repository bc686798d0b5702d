"""The reference of paged_attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def paged_attention(
    q: Tensor,
    cache: Tensor,
    read_slots: Tensor,
    bias: Tensor,
    kv_heads: int,
    value_dim: int | None = None,
    scale: float | None = None,
    sparse: bool = False,
    start: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """One query head at a time, in float64. cache [S, planes, kv_heads, head_dim]; -> [B * W, heads * value_dim].

    The last plane holds the values: their own plane, or the keys' first value_dim columns.
    """
    batch, width, heads, head_dim = q.shape
    group = heads // kv_heads
    wide = head_dim if value_dim is None else value_dim
    factor = 1 / math.sqrt(head_dim) if scale is None else scale
    out = torch.empty(batch, width, heads, wide, dtype=q.dtype, device=q.device)
    for b in range(batch):
        slots = read_slots[b].tolist()
        for w in range(width):
            seen = [t for t in range(len(slots)) if bias[b, 0, w, t] == 0]
            for h in range(heads):
                keys = torch.stack([cache[slots[t], 0, h // group] for t in seen]).double()
                values = torch.stack([cache[slots[t], -1, h // group, :wide] for t in seen]).double()
                weights = torch.softmax(keys @ q[b, w, h].double() * factor, dim=0)
                out[b, w, h] = (weights @ values).to(q.dtype)
    return out.view(batch * width, heads * wide)
