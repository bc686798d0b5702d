"""Attention of new tokens over keys and values that lie scattered in slots."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.core.errors import KernelError
from kernels import contract
from kernels.paged_attention import eager
from kernels.paged_attention.eager import MIN_READ, Reads, attend, spread_bias, spread_slots

__all__ = ["MIN_READ", "Reads", "attend", "paged_attention", "plan_reads", "spread_bias", "spread_slots"]


def plan_reads(
    read_slots: Tensor,
    bias: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    deterministic: bool = True,
    checked: bool = False,
) -> Reads:
    """What all layers of one step share: where to read and what each query may see.

    read_slots int64 [B, T]: the slot of each key position; a position that nobody may see needs any valid slot whose
    content is finite. bias [B, 1, W, T]: 0 where query w of request b may attend, else -inf; every query needs at least
    one 0. heads is a multiple of kv_heads; query head h reads key head h // (heads / kv_heads).
    deterministic: a query's bits do not depend on what else is in the step or on masked keys (see eager.py).
    KernelError on other shapes; with `checked` also on dtype and on a query that may attend to nothing.
    """
    batch, length = read_slots.shape
    if bias.dim() != 4 or bias.shape[::3] != (batch, length) or bias.shape[1] != 1:
        raise contract.shape_error("paged_attention", "bias", bias, (batch, 1, "W", length))
    if heads % kv_heads:
        raise KernelError(f"paged_attention: {heads} heads must be a multiple of {kv_heads} key heads")
    if checked:
        contract.dtype("paged_attention", (torch.int64,), read_slots=read_slots)
        if not bool((bias == 0).any(-1).all()):
            raise KernelError("paged_attention: a query may attend to nothing, each needs at least one 0 in its bias")
    return eager.plan_reads(read_slots, bias, heads, kv_heads, head_dim, deterministic)


def paged_attention(q: Tensor, cache: Tensor, reads: Reads) -> Tensor:
    """softmax(q k^T / sqrt(head_dim) + bias) v -> [B * W, heads * head_dim].

    q [B, W, heads, head_dim], may be a view. cache [S * 2 * kv_heads, head_dim]: one layer of a pool, row
    (slot * 2 + 0) * kv_heads + h is key head h of a slot, row (slot * 2 + 1) * kv_heads + h its value head.
    KernelError if q is not of the planned shape.
    """
    if q.shape != reads.query:
        raise contract.shape_error("paged_attention", "q", q, reads.query)
    return eager.paged_attention(q, cache, reads)
