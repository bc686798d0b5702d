"""Attention of new tokens over the slots of a paged KV cache.

In torch: one gather, two batched products and a softmax. Query heads that share a key head are rows of one product,
[B * kv_heads, W * group, ...]. With `deterministic` a query's result is bitwise independent of B, W and masked keys,
for any BLAS, thread count and instruction set: every sum is over integers that float64 represents exactly (`_exactly`),
so the summation order has no effect, and a masked key adds 0.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module

# The number of keys is padded to a multiple of this on a GPU, so that rows of slots and masks are aligned.
ALIGNED = 128
# Sums of products stay below 2^53: the largest element of a key, value or query is scaled to MAX_ELEMENT (half of it
# for rows of more than WIDE elements, at most 4 * WIDE), a query's weights sum to WEIGHTS, and its softmax numerators,
# at most 2^24 of them, are at most MASS.
MAX_ELEMENT, WIDE = 2.0**22, 512
WEIGHTS, MASS = 2.0**30, 2.0**24
# The quantisation unit of a row of zeros.
TINY = 1e-30


class ExactBuffers(NamedTuple):
    """The buffers of `_exactly` for the R rows of one layer's keys, values and queries.

    rows [R, d] in the step's dtype; size [R, d] float32; unit [R, 1] float32; whole [R, d] float64. The others are
    views: query of rows; query_unit, key_unit and value_unit of unit; queries, keys_t and values of whole.
    """

    rows: Tensor
    size: Tensor
    unit: Tensor
    whole: Tensor
    query: Tensor
    query_unit: Tensor
    key_unit: Tensor
    value_unit: Tensor
    queries: Tensor
    keys_t: Tensor
    values: Tensor


class Reads(NamedTuple):
    """The state shared by all layers of one step; one layer uses its buffers at a time.

    query: shape of q [B, W, heads, head_dim]. where int64: rows of the cache in the order [planes, B, kv_heads, T].
    buffer: the gathered rows; read [planes, B * kv_heads, T, head_dim] is a view of it. value_dim: as in plan_reads.
    scale: softmax scale. bias [B * kv_heads, W * group, T]. exact: None unless deterministic.
    """

    query: tuple[int, int, int, int]
    kv_heads: int
    scale: float
    where: Tensor
    buffer: Tensor
    read: Tensor
    value_dim: int | None
    bias: Tensor
    exact: ExactBuffers | None


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
    causal: bool = False,
) -> Reads:
    """The attention metadata shared by all layers of one step: which slots to read and the mask of each query.

    read_slots int64 [B, T]: the slot of each key position; a fully masked position may name any slot with finite
    content, such as the padding slot 0. bias [B, 1, W, T]: 0 where query w of request b may attend, else -inf; every
    query needs at least one 0. heads is a multiple of kv_heads; query head h reads key head h // (heads / kv_heads).
    value_dim: None for separate keys and values; else one plane holds both, and a value is the first value_dim columns
    of its key (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434). scale: softmax scale, 1/sqrt(head_dim) if
    None. sparse: most keys are masked for all queries of a request, as by a sliding window; a hint to skip work.
    start int64 [B]: query w of request b attends to no position past start[b] + w; causal: and to all others; hints
    too.
    deterministic: a query's bits depend neither on the rest of the batch nor on masked keys (on a GPU, on those
    between keys that it sees where these lie in other blocks, see triton.py).
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
    if on_triton(bias):
        form, hints = triton_module(__name__), (sparse, start, causal)
        return form.plan_reads(read_slots, bias, heads, kv_heads, head_dim, deterministic, value_dim, scale, *hints)
    width, planes = bias.shape[2], 2 if value_dim is None else 1
    where = spread_slots(read_slots, kv_heads, planes)
    rows = bias.new_empty(len(where) + (batch * width * heads if deterministic else 0), head_dim)
    buffer = rows[: len(where)]
    read = buffer.view(planes, batch * kv_heads, length, head_dim)
    return Reads(
        query=(batch, width, heads, head_dim),
        kv_heads=kv_heads,
        scale=head_dim**-0.5 if scale is None else scale,
        where=where,
        buffer=buffer,
        read=read,
        value_dim=value_dim,
        bias=spread_bias(bias, heads, kv_heads),
        exact=_exact_buffers(rows, read, value_dim, width * heads // kv_heads) if deterministic else None,
    )


def paged_attention(q: Tensor, cache: Tensor, reads: Reads) -> Tensor:
    """softmax(scale q k^T + bias) v -> [B * W, heads * value_dim].

    q [B, W, heads, head_dim], may be a view. cache [S * planes * kv_heads, head_dim]: one layer of a KV pool; row
    (slot * planes + 0) * kv_heads + h is key head h of a slot, and with two planes row (slot * 2 + 1) * kv_heads + h is
    its value head.
    KernelError if q does not have the planned shape.
    """
    preconditions.shapes("paged_attention", q=(q, reads.query))
    if on_triton(q):
        return triton_module(__name__).paged_attention(q, cache, reads)
    torch.index_select(cache, 0, reads.where, out=reads.buffer)
    if reads.exact is not None:
        return _exactly(q, reads, reads.exact)
    return attend(q, reads.kv_heads, reads.scale, reads.read, reads.value_dim, reads.bias)


def _exact_buffers(rows: Tensor, read: Tensor, value_dim: int | None, group: int) -> ExactBuffers:
    """rows [R, d], whose first part is `read` [planes, B * kv_heads, T, d]. group: queries per key head."""
    planes, groups, length, head_dim = read.shape
    count = planes * groups * length
    each = (groups, group)
    unit = torch.empty(len(rows), 1, device=rows.device)
    whole = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
    units, wholes = unit[:count].view(planes, groups, 1, length), whole[:count].view(read.shape)
    return ExactBuffers(
        rows=rows,
        size=torch.empty(rows.shape, device=rows.device),
        unit=unit,
        whole=whole,
        query=rows[count:].view(*each, head_dim),
        query_unit=unit[count:].view(*each, 1),
        key_unit=units[0],
        value_unit=units[-1],
        queries=whole[count:].view(*each, head_dim),
        keys_t=wholes[0].transpose(1, 2),
        values=wholes[-1, ..., :value_dim],
    )


def spread_slots(read_slots: Tensor, kv_heads: int, planes: int = 2) -> Tensor:
    """Slots [B, T] -> flat cache rows in the order [planes, B, kv_heads, T]."""
    return (read_slots[:, None] * (planes * kv_heads) + _kinds(planes, kv_heads, read_slots.device)).view(-1)


@cache
def _kinds(planes: int, kv_heads: int, device: torch.device) -> Tensor:
    """Row offsets within a slot, [planes, 1, kv_heads, 1]; cached, as every step needs them."""
    with torch.inference_mode(False):
        return torch.arange(planes * kv_heads, device=device).view(planes, 1, kv_heads, 1)


def spread_bias(bias: Tensor, heads: int, kv_heads: int) -> Tensor:
    """[B, 1, W, T] -> [B * kv_heads, W * group, T], one row per row of the products."""
    batch, _, width, length = bias.shape
    group = heads // kv_heads
    wide = bias[:, :, :, None].expand(batch, kv_heads, width, group, length)
    return wide.reshape(batch * kv_heads, width * group, length)


def attend(q: Tensor, kv_heads: int, scale: float, read: Tensor, value_dim: int | None, bias: Tensor) -> Tensor:
    """Non-deterministic attention. q [B, W, heads, d]; read [planes, B * kv_heads, T, d];
    bias [B * kv_heads, W * group, T] -> [B * W, heads * v].

    read: keys, then values; with one plane the values are the keys' first value_dim columns.
    """
    folded, keys, values = _folded(q, kv_heads), read[0], read[-1, ..., :value_dim]
    if q.dtype is torch.float32:
        scores = torch.baddbmm(bias, folded * scale, keys.transpose(1, 2))
        mixed = torch.bmm(torch.softmax(scores, -1), values)
    else:
        # Half precision needs float32 accumulation and a float32 softmax, which the fused call has.
        folded, keys, values, bias = (part[:, None] for part in (folded, keys, values, bias))
        mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=bias, scale=scale)[:, 0]
    return _unfolded(mixed, q)


def _folded(q: Tensor, kv_heads: int) -> Tensor:
    """[B, W, heads, d] -> [B * kv_heads, W * group, d]."""
    batch, width, heads, head_dim = q.shape
    rows = width * heads // kv_heads
    if width > 1:
        q = q.reshape(batch, width, kv_heads, heads // kv_heads, head_dim).transpose(1, 2)
    return q.reshape(batch * kv_heads, rows, head_dim)


def _unfolded(mixed: Tensor, q: Tensor) -> Tensor:
    """[B * kv_heads, W * group, v] -> [B * W, heads * v]; q: the unfolded queries."""
    batch, width, heads, _ = q.shape
    wide = mixed.shape[2]
    if width == 1:
        return mixed.reshape(batch, heads * wide)
    split = mixed.view(batch, -1, width, mixed.shape[1] // width, wide)
    return split.transpose(1, 2).reshape(batch * width, heads * wide)


def _exactly(q: Tensor, reads: Reads, exact: ExactBuffers) -> Tensor:
    """Attention with exact, order-independent sums: each factor is quantised to integer multiples of its row's unit.

    The unit of a query or key is a fraction of its row's maximum; a weight includes its value's unit, and is itself
    quantised by a fraction of the largest value attended to. Only elementwise operations round.
    """
    exact.query.copy_(_folded(q, reads.kv_heads))
    rows = exact.rows.float()
    most = MAX_ELEMENT if q.shape[3] <= WIDE else MAX_ELEMENT / 2
    torch.abs(rows, out=exact.size)
    torch.amax(exact.size, -1, True, out=exact.unit)
    exact.unit.mul_(1 / most).clamp_min_(TINY)
    exact.whole.copy_(rows.div_(exact.unit).round_())
    exact.query_unit.mul_(reads.scale)
    scores = torch.bmm(exact.queries, exact.keys_t).float()
    scores.mul_(exact.key_unit).mul_(exact.query_unit).add_(reads.bias)
    mass = scores.sub_(scores.amax(-1, True)).exp_().mul_(MASS)
    total = mass.round().sum(-1, True, dtype=torch.float64)
    largest = (reads.bias + exact.value_unit).amax(-1, True).mul_(1 / WEIGHTS)
    weights = mass.mul_(exact.value_unit).div_(total.mul_(largest).float()).round_()
    mixed = torch.bmm(weights.double(), exact.values).mul_(largest)
    return _unfolded(mixed.to(q.dtype), q)
