"""paged_attention in few torch calls: one gather, two batched products and a softmax.

Query heads that share a key head stand in the rows of one product, [B * kv_heads, W * group, ...].

With `deterministic`, in float32 and for head_dim up to 64, a query's result does not depend, bit by bit, on B, on W, or
on how many masked keys lie between and behind those that it sees (tests hold this where torch's BLAS adds up a product
key by key for every size, as MKL does with AVX-512). It takes four things:
- at least two rows per product, as a lone one takes a matrix-vector routine with another order, and three of more than
  PAIRABLE numbers, where two rows have a routine of their own;
- at least MIN_READ keys, as tiny products take a routine of their own;
- the factor of the scores on the queries, as inside the product it comes before or after the sum, by size;
- the sum of a softmax as one more product, since torch.softmax adds up key positions in 8 or 16 lanes.
Only the last costs time (three more calls), so it alone is left out otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

MIN_READ = 32
# Keys come in multiples of this where a GPU reads them: rows of slots and masks so long begin where it reads fast.
ALIGNED = 128
PAIRABLE = 32
# Columns of ones that a softmax is summed with; one column would be a matrix-vector product.
ONES = 2


class Reads(NamedTuple):
    """What the layers of one step share, a buffer among it: one layer reads at a time.

    query: shape of q [B, W, heads, head_dim]. where int64: rows of the cache in the order [planes, B, kv_heads, T].
    buffer: what `where` reads; of it keys_t [B * kv_heads, head_dim, T] and values [B * kv_heads, T, value_dim].
    scale: factor of the scores.
    bias [B * kv_heads, rows, T], rows being W * group, as often as `repeats` says.
    ones [B * kv_heads, T, ONES], None where sums need not be deterministic.
    """

    query: tuple[int, int, int, int]
    kv_heads: int
    scale: float
    where: Tensor
    buffer: Tensor
    keys_t: Tensor
    values: Tensor
    bias: Tensor
    ones: Tensor | None


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
    if read_slots.shape[1] < MIN_READ:
        missing = MIN_READ - read_slots.shape[1]
        read_slots, bias = pad(read_slots, (0, missing)), pad(bias, (0, missing), value=float("-inf"))
    batch, length = read_slots.shape
    planes = 2 if value_dim is None else 1
    where = spread_slots(read_slots, kv_heads, planes)
    buffer = bias.new_empty(where.shape[0], head_dim)
    keys_t, values = split_planes(buffer.view(planes, batch * kv_heads, length, head_dim), value_dim)
    return Reads(
        query=(batch, bias.shape[2], heads, head_dim),
        kv_heads=kv_heads,
        scale=head_dim**-0.5 if scale is None else scale,
        where=where,
        buffer=buffer,
        keys_t=keys_t,
        values=values,
        bias=spread_bias(bias, heads, kv_heads, head_dim),
        ones=bias.new_ones(batch * kv_heads, length, ONES) if deterministic else None,
    )


def split_planes(read: Tensor, value_dim: int | None) -> tuple[Tensor, Tensor]:
    """read [planes, B * kv_heads, T, head_dim] -> keys_t [B * kv_heads, head_dim, T], values [B * kv_heads, T, v].

    value_dim: None for two planes; else values are the first value_dim columns of the keys. Both are views.
    """
    return read[0].transpose(1, 2), read[1] if value_dim is None else read[0, ..., :value_dim]


def spread_slots(read_slots: Tensor, kv_heads: int, planes: int = 2) -> Tensor:
    """Slots [B, T] -> rows of the cache in the order [planes, B, kv_heads, T], flat."""
    return (read_slots[:, None] * (planes * kv_heads) + _kinds(planes, kv_heads, read_slots.device)).view(-1)


@cache
def _kinds(planes: int, kv_heads: int, device: torch.device) -> Tensor:
    """A slot's rows, [planes, 1, kv_heads, 1]; kept, as every step needs it."""
    with torch.inference_mode(False):
        return torch.arange(planes * kv_heads, device=device).view(planes, 1, kv_heads, 1)


def repeats(rows: int, head_dim: int) -> int:
    """How often the rows of a product stand in it, so that it takes the routine of larger ones."""
    if rows == 1:
        return 2 if head_dim <= PAIRABLE else 3
    return 2 if rows == 2 and head_dim > PAIRABLE else 1


def spread_bias(bias: Tensor, heads: int, kv_heads: int, head_dim: int) -> Tensor:
    """[B, 1, W, T] -> [B * kv_heads, W * group, T], the rows of the products."""
    batch, _, width, length = bias.shape
    group = heads // kv_heads
    again = repeats(width * group, head_dim)
    wide = bias[:, None, :, :, None].expand(batch, kv_heads, again, width, group, length)
    return wide.reshape(batch * kv_heads, again * width * group, length)


def attend(
    q: Tensor, kv_heads: int, scale: float, keys_t: Tensor, values: Tensor, bias: Tensor, ones: Tensor | None
) -> Tensor:
    """q [B, W, heads, d]; keys_t [B * kv_heads, d, T]; values [B * kv_heads, T, v]; bias [B * kv_heads, rows, T].

    ones: as in Reads. -> [B * W, heads * v].
    """
    batch, width, heads, head_dim = q.shape
    group, value_dim = heads // kv_heads, values.shape[2]
    rows = width * group
    if q.dtype is torch.float32:
        q = q * scale
    if width == 1:
        folded = q.reshape(batch * kv_heads, group, head_dim)
    else:
        split = q.reshape(batch, width, kv_heads, group, head_dim)
        folded = split.transpose(1, 2).reshape(batch * kv_heads, rows, head_dim)
    again = repeats(rows, head_dim)
    if again > 1:
        folded = folded.repeat(1, again, 1)
    mixed = _mix(folded, scale, keys_t, values, bias, ones)
    if again > 1:
        mixed = mixed[:, :rows]
    if width == 1:
        return mixed.reshape(batch, heads * value_dim)
    split = mixed.view(batch, kv_heads, width, group, value_dim)
    return split.transpose(1, 2).reshape(batch * width, heads * value_dim)


def _mix(q: Tensor, scale: float, keys_t: Tensor, values: Tensor, bias: Tensor, ones: Tensor | None) -> Tensor:
    if q.dtype is torch.float32:
        scores = torch.baddbmm(bias, q, keys_t)
        if ones is None:
            return torch.bmm(torch.softmax(scores, -1), values)
        mass = scores.sub_(scores.amax(-1, True)).exp_()
        return torch.bmm(mass, values).div_(torch.bmm(mass, ones)[:, :, :1])
    # Half precision needs float32 sums and a float32 softmax, which the fused call keeps.
    keys = keys_t.transpose(1, 2)
    q, keys, values, bias = (part[:, None] for part in (q, keys, values, bias))
    return scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scale)[:, 0]


def paged_attention(q: Tensor, cache: Tensor, reads: Reads) -> Tensor:
    torch.index_select(cache, 0, reads.where, out=reads.buffer)
    return attend(q, reads.kv_heads, reads.scale, reads.keys_t, reads.values, reads.bias, reads.ones)
