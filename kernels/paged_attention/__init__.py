"""Attention of new tokens over the slots of a paged KV cache."""

from __future__ import annotations

from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.paged_attention import eager
from specmatrix.kernels.paged_attention.eager import ALIGNED, Reads, attend, spread_bias, spread_slots

__all__ = [
    "ALIGNED",
    "Reads",
    "attend",
    "paged_attention",
    "plan_reads",
    "spread_bias",
    "spread_slots",
]


def plan_reads(
    read_slots: Tensor,
    bias: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    deterministic: bool = True,
    value_dim: int | None = None,
    scale: float | None = None,
    sparse: bool = False,
    start: Tensor | None = None,
) -> Reads:
    """The attention metadata shared by all layers of one step: which slots to read and the mask of each query.

    read_slots int64 [B, T]: the slot of each key position; a fully masked position may name any slot with finite
    content, such as the padding slot 0. bias [B, 1, W, T]: 0 where query w of request b may attend, else -inf; every
    query needs at least one 0. heads is a multiple of kv_heads; query head h reads key head h // (heads / kv_heads).
    value_dim: None for separate keys and values; else one plane holds both, and a value is the first value_dim columns
    of its key (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434). scale: softmax scale, 1/sqrt(head_dim) if
    None. sparse: most keys are masked for all queries of a request, as by a sliding window; a hint to skip work.
    start int64 [B]: no query of request b attends past position start[b] + W - 1; a hint too.
    deterministic: a query's bits depend neither on the rest of the batch nor on masked keys (see eager.py; on a GPU,
    on those between keys that it sees where these lie in other blocks, see triton.py).
    KernelError on other shapes.
    """
    batch, length = read_slots.shape
    if bias.dim() != 4 or bias.shape[::3] != (batch, length) or bias.shape[1] != 1:
        raise preconditions.shape_error("paged_attention", "bias", bias, (batch, 1, "W", length))
    if heads % kv_heads:
        raise KernelError(f"paged_attention: heads must be a multiple of kv_heads {kv_heads}, got {heads}")
    if value_dim is not None and not 1 <= value_dim <= head_dim:
        raise KernelError(f"paged_attention: value_dim must be between 1 and head_dim {head_dim}, got {value_dim}")
    if start is not None and start.shape != (batch,):
        raise preconditions.shape_error("paged_attention", "start", start, (batch,))
    form = select_backend(eager, bias)
    return form.plan_reads(read_slots, bias, heads, kv_heads, head_dim, deterministic, value_dim, scale, sparse, start)


def paged_attention(q: Tensor, cache: Tensor, reads: Reads) -> Tensor:
    """softmax(scale q k^T + bias) v -> [B * W, heads * value_dim].

    q [B, W, heads, head_dim], may be a view. cache [S * planes * kv_heads, head_dim]: one layer of a KV pool; row
    (slot * planes + 0) * kv_heads + h is key head h of a slot, and with two planes row (slot * 2 + 1) * kv_heads + h is
    its value head.
    KernelError if q does not have the planned shape.
    """
    if q.shape != reads.query:
        raise preconditions.shape_error("paged_attention", "q", q, reads.query)
    return select_backend(eager, q).paged_attention(q, cache, reads)
