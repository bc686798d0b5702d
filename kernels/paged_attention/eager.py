"""paged_attention in few torch calls: one gather, two batched products and a softmax.

Query heads that share a key head stand in the rows of one product, [B * kv_heads, W * group, ...].

With `deterministic` a query's result does not depend, bit by bit, on B, on W, or on how many masked keys lie between
and behind those that it sees, whatever the BLAS, its threads and the instruction set: every sum is one of whole numbers
that float64 holds (`_exactly`), so no order of additions can show, and a masked key adds 0.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# Keys come in multiples of this where a GPU reads them: rows of slots and masks so long begin where it reads fast.
ALIGNED = 128
# What the largest number of a key or value, the largest of a query and the sum of a query's weights become as whole
# numbers. A sum of products must stay below 2^53: queries may have 1024 numbers, a step 2^24 keys.
KEY, QUERY, WEIGHTS = 2.0**22, 2.0**21, 2.0**30
MASS = 2.0**24
# Stands for the largest number where all are 0.
TINY = 1e-30


class Reads(NamedTuple):
    """What the layers of one step share, a buffer among it: one layer reads at a time.

    query: shape of q [B, W, heads, head_dim]. where int64: rows of the cache in the order [planes, B, kv_heads, T].
    buffer: what `where` reads; read [planes, B * kv_heads, T, head_dim], a view of it. value_dim: as in plan_reads.
    scale: factor of the scores. bias [B * kv_heads, W * group, T].
    """

    query: tuple[int, int, int, int]
    kv_heads: int
    scale: float
    where: Tensor
    buffer: Tensor
    read: Tensor
    value_dim: int | None
    bias: Tensor
    deterministic: bool


def plan_reads(
    read_slots: Tensor,
    bias: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    deterministic: bool,
    value_dim: int | None,
    scale: float | None,
    sparse: bool,
    start: Tensor | None,
) -> Reads:
    """sparse and start: of no use here, where one gather reads all."""
    batch, length = read_slots.shape
    planes = 2 if value_dim is None else 1
    where = spread_slots(read_slots, kv_heads, planes)
    buffer = bias.new_empty(where.shape[0], head_dim)
    return Reads(
        query=(batch, bias.shape[2], heads, head_dim),
        kv_heads=kv_heads,
        scale=head_dim**-0.5 if scale is None else scale,
        where=where,
        buffer=buffer,
        read=buffer.view(planes, batch * kv_heads, length, head_dim),
        value_dim=value_dim,
        bias=spread_bias(bias, heads, kv_heads),
        deterministic=deterministic,
    )


def spread_slots(read_slots: Tensor, kv_heads: int, planes: int = 2) -> Tensor:
    """Slots [B, T] -> rows of the cache in the order [planes, B, kv_heads, T], flat."""
    return (read_slots[:, None] * (planes * kv_heads) + _kinds(planes, kv_heads, read_slots.device)).view(-1)


@cache
def _kinds(planes: int, kv_heads: int, device: torch.device) -> Tensor:
    """A slot's rows, [planes, 1, kv_heads, 1]; kept, as every step needs it."""
    with torch.inference_mode(False):
        return torch.arange(planes * kv_heads, device=device).view(planes, 1, kv_heads, 1)


def spread_bias(bias: Tensor, heads: int, kv_heads: int) -> Tensor:
    """[B, 1, W, T] -> [B * kv_heads, W * group, T], the rows of the products."""
    batch, _, width, length = bias.shape
    group = heads // kv_heads
    wide = bias[:, :, :, None].expand(batch, kv_heads, width, group, length)
    return wide.reshape(batch * kv_heads, width * group, length)


def attend(
    q: Tensor, kv_heads: int, scale: float, read: Tensor, value_dim: int | None, bias: Tensor, deterministic: bool
) -> Tensor:
    """q [B, W, heads, d]; read [planes, B * kv_heads, T, d]; bias [B * kv_heads, W * group, T] -> [B * W, heads * v].

    read: keys, then values; of one plane the keys' first value_dim columns are the values.
    """
    batch, width, heads, head_dim = q.shape
    group = heads // kv_heads
    if width == 1:
        folded = q.reshape(batch * kv_heads, group, head_dim)
    else:
        split = q.reshape(batch, width, kv_heads, group, head_dim)
        folded = split.transpose(1, 2).reshape(batch * kv_heads, width * group, head_dim)
    mixed = (_exactly if deterministic else _mix)(folded, scale, read, value_dim, bias)
    wide = mixed.shape[2]
    if width == 1:
        return mixed.reshape(batch, heads * wide)
    split = mixed.view(batch, kv_heads, width, group, wide)
    return split.transpose(1, 2).reshape(batch * width, heads * wide)


def _mix(q: Tensor, scale: float, read: Tensor, value_dim: int | None, bias: Tensor) -> Tensor:
    keys, values = read[0], read[-1, ..., :value_dim]
    if q.dtype is torch.float32:
        scores = torch.baddbmm(bias, q * scale, keys.transpose(1, 2))
        return torch.bmm(torch.softmax(scores, -1), values)
    # Half precision needs float32 sums and a float32 softmax, which the fused call keeps.
    q, keys, values, bias = (part[:, None] for part in (q, keys, values, bias))
    return scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scale)[:, 0]


def _exactly(q: Tensor, scale: float, read: Tensor, value_dim: int | None, bias: Tensor) -> Tensor:
    """The same with sums that have no order: each factor is rounded to a whole number in a unit of its own row.

    A query's and a key's unit is a part of the row's largest number; a weight is worth its key's value unit, and its
    own unit is a part of the largest value in sight. Only operations on single numbers round.
    """
    dtype = q.dtype
    q, bias = q.float(), bias.float()
    read, size = _whole(read.float(), KEY)
    queries, query_size = _whole(q, QUERY)
    wide = read.double()
    key_size, value_size = size[0].transpose(1, 2), size[-1].transpose(1, 2)
    scores = torch.bmm(queries.double(), wide[0].transpose(1, 2)).float()
    scores.mul_(key_size / KEY).mul_(query_size * (scale / QUERY)).add_(bias)
    mass = scores.sub_(scores.amax(-1, True)).exp_()
    total = (mass * MASS).round_().sum(-1, True, dtype=torch.float64).div_(MASS).float()
    largest = (bias + value_size).amax(-1, True)
    weights = mass.mul_(value_size).div_(total * largest).mul_(WEIGHTS).round_()
    mixed = torch.bmm(weights.double(), wide[-1, ..., :value_dim])
    return mixed.mul_(1 / (WEIGHTS * KEY)).to(torch.float32).mul_(largest).to(dtype)


def _whole(x: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Whole numbers up to `most` in proportion to each row of x, and the row's largest magnitude [..., 1]."""
    size = x.abs().amax(-1, True).clamp_min_(TINY)
    return (x * (most / size)).round_(), size


def paged_attention(q: Tensor, cache: Tensor, reads: Reads) -> Tensor:
    torch.index_select(cache, 0, reads.where, out=reads.buffer)
    return attend(q, reads.kv_heads, reads.scale, reads.read, reads.value_dim, reads.bias, reads.deterministic)
