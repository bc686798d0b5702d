"""paged_attention with keys split at fixed positions (split-KV).

In deterministic mode a split always holds SPLIT key positions, whatever the number of keys, requests and queries.
Tensor cores give a query the same bits in tiles of any number of queries. A query's result merges its splits in
ascending order; a fully masked split or block of keys leaves every bit unchanged. So its bits depend neither on the
rest of the step, nor on masked keys behind those that it sees, nor on the slots' positions in the pool. Masked keys
between them, as in a tree, matter only where they move a key to another block, and there by rounding. Small steps use
one program per split and a second launch that merges; larger ones merge within one program. FMA fusion is disabled, so
that both round identically. Otherwise each request's keys are split evenly, into as many parts as keep a GPU busiest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.kernels import preconditions
from specmatrix.kernels.dot import dot, wide
from specmatrix.kernels.paged_attention import ALIGNED
from specmatrix.kernels.pdl import SHARED_MEMORY, begin, launch, supports_pdl

SPLIT = 256
# Splits that are loaded ahead while one is merged, and tiles of keys while one is multiplied.
AHEAD = 4
# Keys per split for few requests in non-deterministic mode.
SHORT = 128
# Queries per tile, except for the widest heads, and in prefills.
WIDE_TILE, PREFILL_TILE = 32, 64
LOG2_E = 1.4426950408889634
# Number of programs that a GPU runs at once.
FULL = 264
# What a program costs besides its keys, and its part of the merge, in keys.
OVERHEAD = 192
# Number of query tiles from which a step is a prefill, whose early tiles see few of the keys.
MANY_TILES = 8


class AttentionShape(NamedTuple):
    """Queries and keys per tile; d1, d2: a key's width and the tail of a latent key, rounded up to powers of 2."""

    rows: int
    keys: int
    d1: int
    d2: int
    warps: int
    stages: int


class SplitReads(NamedTuple):
    """The state shared by all layers of one step, for T keys padded to a multiple of ALIGNED.

    query: shape of q; slots [B, T], the padding slot 0 past the keys; masks [B, W, T], 0 for keys that a query may see;
    factor: softmax scale; sparse: most keys are masked for all queries of a request; start [B]: query w sees no key
    past start + w, and with `causal` every other.
    """

    query: tuple[int, int, int, int]
    kv_heads: int
    value_dim: int | None
    factor: float
    slots: Tensor
    masks: Tensor
    sparse: bool
    deterministic: bool
    start: Tensor | None
    causal: bool


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
    causal: bool,
) -> SplitReads:
    """As in __init__.py; without `deterministic` a small step may use shorter splits."""
    preconditions.dense("paged_attention", read_slots=read_slots, bias=bias)
    if start is not None:
        preconditions.contiguous("paged_attention", start=start)
    factor = head_dim**-0.5 if scale is None else scale
    query = (bias.shape[0], bias.shape[2], heads, head_dim)
    beyond = -read_slots.shape[1] % ALIGNED
    slots, masks = read_slots, bias[:, 0]
    if beyond:
        slots, masks = pad(slots, (0, beyond)), pad(masks, (0, beyond), value=float("-inf"))
    slots, masks = slots.contiguous(), masks.contiguous()
    return SplitReads(query, kv_heads, value_dim, factor, slots, masks, sparse, deterministic, start, causal)


@lru_cache(maxsize=64)
def shape(head_dim: int, value_dim: int, size: int, group: int) -> AttentionShape:
    """The tile for keys of head_dim elements of `size` bytes shared by `group` query heads; the same in every step."""
    d1 = max(16, triton.next_power_of_2(value_dim))
    d2 = max(16, triton.next_power_of_2(head_dim - value_dim)) if head_dim > value_dim else 0
    if (d1 + d2) * size > 512:
        return AttentionShape(64 if group >= 64 and size == 2 else 16, 32, d1, d2, warps=8, stages=2)
    return AttentionShape(WIDE_TILE, 64, d1, d2, warps=2 if size == 2 else 4, stages=3 if d1 * size <= 256 else 2)


def fit(
    tile: AttentionShape, rows: int, length: int, pairs: int, memory: int, even: bool
) -> tuple[AttentionShape, int, int]:
    """The tile, the number of splits and their keys (0: equal shares) of a step with `rows` queries for each of `pairs`
    key heads. memory: elements that a program may load ahead; even: splits need not have SPLIT keys.

    A program of several tiles of keys loads as many ahead as fit; where there are more programs than run at once, they
    hide each other's latency.
    """
    if rows > WIDE_TILE:
        tile = tile._replace(rows=PREFILL_TILE, warps=4)
    elif rows <= 16:
        tile = tile._replace(rows=16)
    if not even:
        return tile, triton.cdiv(length, SPLIT), SPLIT
    programs = pairs * triton.cdiv(rows, tile.rows)
    count, ahead = split_count(programs, length), max(2, min(AHEAD + 1, memory // (64 * 2 * tile.d1)))
    if tile.rows == PREFILL_TILE:
        return tile._replace(stages=min(3, ahead)), 1 if programs >= FULL else count, 0
    keys = triton.cdiv(length, count)
    if keys <= SHORT:
        # Which keys a program reads does not wait for what it sees.
        tile = tile._replace(keys=SHORT if 4 * SHORT * tile.d1 <= memory else 64, warps=4, stages=2)
        return tile, triton.cdiv(length, SHORT), SHORT
    if count == 1 and programs > FULL:
        return tile._replace(warps=2, stages=2), 1, 0
    return tile._replace(warps=8 if rows <= 16 and keys > SPLIT else 2, stages=ahead), count, 0


@lru_cache(maxsize=1024)
def split_count(programs: int, length: int) -> int:
    """The number of splits with which `programs` times as many programs, FULL at once, read `length` keys soonest; at
    least SHORT keys each."""

    def cost(count: int) -> int:
        return triton.cdiv(programs * count, FULL) * (triton.cdiv(length, count) + OVERHEAD)

    return min(range(1, triton.cdiv(length, SHORT) + 1), key=cost)


@triton.jit
def _nothing(ROWS: tl.constexpr, D1: tl.constexpr):
    """The attention of queries that saw no key."""
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    return peak, tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, D1), tl.float32)


@triton.jit
def _fold(
    q1, q2, row, slots, masks, live, first, stop, peak, total, mixed, slot_size, value_at, factor, key_dim, head_dim,
    KEYS: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, MOST: tl.constexpr, SPLIT: tl.constexpr,
    WIDE: tl.constexpr, SEEN: tl.constexpr = False,
):  # fmt: skip
    """Add keys first..stop-1, at most MOST, to a query tile's attention: maxima and sums [ROWS], unnormalised outputs
    [ROWS, D1].

    A query that saw none yet has -inf, 0 and 0. SPLIT: every SPLIT keys are summed by themselves and then merged; 0:
    one sum. One loop reads all keys, so that loads run ahead across splits. row: key of slot 0; q1 multiplies a key's
    first key_dim elements, q2 the rest up to head_dim. value_at: offset from a key to its value. masks: pointers to
    position 0 of each query. SEEN: no key is masked.
    """
    ROWS: tl.constexpr = q1.shape[0]
    column, tail = tl.arange(0, D1), tl.arange(0, D1 if D2 == 0 else D2)
    first_column = (tl.arange(0, 16) == 0)[None, :]
    ones = tl.full((KEYS, 16), 1.0, tl.float32).to(q1.dtype)
    if SPLIT:
        all_peak, all_total, all_mixed = peak, total, mixed
        peak, total, mixed = _nothing(ROWS, D1)
    for step in range(0, tl.minimum(MOST, stop - first), KEYS):
        at = first + step + tl.arange(0, KEYS)
        here = row + (tl.load(slots + at) * slot_size)[:, None]
        wanted = (column < key_dim)[None, :]
        keys = tl.load(here + column[None, :], mask=wanted, other=0.0)
        score = dot(q1, tl.trans(keys), WIDE)
        if D2 > 0:
            rest = (key_dim + tail < head_dim)[None, :]
            more = tl.load(here + key_dim + tail[None, :], mask=rest, other=0.0)
            score += dot(q2, tl.trans(more), WIDE)
        score *= factor
        if not SEEN:
            hides = tl.load(masks[:, None] + at[None, :], mask=live[:, None], other=float("-inf"))
            score = tl.where(hides == 0, score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, 1))
        calm = tl.where(top == float("-inf"), 0.0, top)
        mass = tl.exp2(score - calm[:, None]).to(keys.dtype)
        fade = tl.exp2(peak - calm)
        # Summed as a matrix product: the order of a tile reduction depends on the layout that the compiler chooses.
        total = total * fade + tl.sum(tl.where(first_column, dot(mass, ones, WIDE), 0.0), 1)
        values = tl.load(here + value_at + column[None, :], mask=wanted, other=0.0)
        mixed = mixed * fade[:, None] + dot(mass, values, WIDE)
        peak = top
        if SPLIT and (first + step + KEYS) % SPLIT == 0:
            all_peak, all_total, all_mixed = _merge(all_peak, all_total, all_mixed, peak, total, mixed)
            peak, total, mixed = _nothing(ROWS, D1)
    if SPLIT:
        peak, total, mixed = _merge(all_peak, all_total, all_mixed, peak, total, mixed)
    return peak, total, mixed


@triton.jit
def _end(starts, request, last, length, ENDS: tl.constexpr):
    """The first key past those that a request's queries up to `last` see; loaded first, so that no other load waits
    for it."""
    stop = length
    if ENDS:
        stop = tl.minimum(tl.load(starts + request) + last + 1, length).to(tl.int32)
    return stop


@triton.jit
def _seen(masks, live, first, length, SPLIT: tl.constexpr):
    """Whether any query of a tile sees a key of a split."""
    at = first + tl.arange(0, SPLIT)
    hides = tl.load(masks[:, None] + at[None, :], mask=live[:, None] & (at < length)[None, :], other=float("-inf"))
    return tl.max(tl.max((hides == 0).to(tl.int32), 1), 0) > 0


@triton.jit
def _merge(peak, total, mixed, more_peak, more_total, more_mixed):
    """Merge two partial softmax results."""
    top = tl.maximum(peak, more_peak)
    calm = tl.where(top == float("-inf"), 0.0, top)
    fade, weight = tl.exp2(peak - calm), tl.exp2(more_peak - calm)
    return top, total * fade + more_total * weight, mixed * fade[:, None] + more_mixed * weight[:, None]


@triton.jit
def _splits(
    q1, q2, row, slots, masks, live, common, stop, length, slot_size, value_at, factor, key_dim, head_dim,
    KEYS: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, SPLIT: tl.constexpr, MERGE: tl.constexpr,
    LOOK: tl.constexpr, CAUSAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Attention over all keys up to `stop`: sums and unnormalised outputs. CAUSAL: all queries see the first `common`
    keys. MERGE: by splits, and `common` is a number of whole ones."""
    MOST: tl.constexpr = 1 << 30
    peak, total, mixed = _nothing(q1.shape[0], D1)
    if LOOK:
        for first in range(0, stop, SPLIT):
            if _seen(masks, live, first, length, SPLIT):
                peak, total, mixed = _fold(q1, q2, row, slots, masks, live, first, stop, peak, total, mixed, slot_size,
                                           value_at, factor, key_dim, head_dim, KEYS, D1, D2, SPLIT, SPLIT * MERGE,
                                           WIDE)  # fmt: skip
    else:
        if CAUSAL:
            peak, total, mixed = _fold(q1, q2, row, slots, masks, live, 0, common, peak, total, mixed, slot_size,
                                       value_at, factor, key_dim, head_dim, KEYS, D1, D2, MOST, SPLIT * MERGE, WIDE,
                                       SEEN=True)  # fmt: skip
        peak, total, mixed = _fold(q1, q2, row, slots, masks, live, common, stop, peak, total, mixed, slot_size,
                                   value_at, factor, key_dim, head_dim, KEYS, D1, D2, MOST, SPLIT * MERGE,
                                   WIDE)  # fmt: skip
    return total, mixed


@triton.jit
def _attend(
    q, cache, slots, masks, starts, out, peaks, totals, mixtures,
    q_batch, q_width, q_head, width, kv_heads, length, slot_size, value_at, factor, head_dim, value_dim, splits,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr, D1: tl.constexpr,
    D2: tl.constexpr, SPREAD: tl.constexpr, MERGE: tl.constexpr, LOOK: tl.constexpr, ENDS: tl.constexpr,
    CAUSAL: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per request and key head, query tile and, with SPREAD, split, of SPLIT keys or (0) of an equal share
    of what the tile sees. LOOK: skip fully masked splits. ENDS: skip tiles that begin past what the queries see.
    CAUSAL: read no masks of keys that all queries of a tile see.

    Row r of a key head's queries is head r % GROUP of its group at width r // GROUP. With SPREAD, `_gather` merges the
    peaks and totals [B, kv_heads, rows, splits] and mixtures [.., value_dim]; otherwise out is written.
    """
    begin(PDL)
    pair = tl.program_id(0).to(tl.int64)
    request, kv_head = pair // kv_heads, pair % kv_heads
    # The last tiles see most keys, so they begin first.
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    r = first_row + tl.arange(0, ROWS)
    live = r < width * GROUP
    at, head = (r // GROUP).to(tl.int64), kv_head * GROUP + r % GROUP
    column = tl.arange(0, D1)
    stop = _end(starts, request, tl.minimum(width - 1, (first_row + ROWS - 1) // GROUP), length, ENDS)
    # A latent key consists of its value and a tail.
    key_dim = value_dim if D2 > 0 else head_dim
    mine = q + request * q_batch + at * q_width + head * q_head
    q1 = tl.load(mine[:, None] + column[None, :], mask=live[:, None] & (column < key_dim)[None, :], other=0.0)
    q2 = q1
    if D2 > 0:
        tail = key_dim + tl.arange(0, D2)
        q2 = tl.load(mine[:, None] + tail[None, :], mask=live[:, None] & (tail < head_dim)[None, :], other=0.0)
    key = cache + kv_head * head_dim
    slots += request * length
    masks += (request * width + at) * length
    written = live[:, None] & (column < value_dim)[None, :]
    if SPREAD:
        span = SPLIT if SPLIT else tl.cdiv(tl.cdiv(stop, splits), KEYS) * KEYS
        first, stop = tl.program_id(2) * span, tl.minimum(stop, (tl.program_id(2) + 1) * span)
        place = (pair * width * GROUP + r) * splits + tl.program_id(2)
        seen = True
        if LOOK:
            seen = _seen(masks, live, first, length, SPLIT)
            tl.store(peaks + place, tl.full((ROWS,), float("-inf"), tl.float32), mask=live & (seen == 0))
        if seen:
            peak, total, mixed = _nothing(ROWS, D1)
            peak, total, mixed = _fold(q1, q2, key, slots, masks, live, first, stop, peak, total, mixed, slot_size,
                                       value_at, factor, key_dim, head_dim, KEYS, D1, D2, 1 << 30, 0, WIDE)  # fmt: skip
            tl.store(peaks + place, peak, mask=live)
            tl.store(totals + place, total, mask=live)
            tl.store(mixtures + place[:, None] * value_dim + column[None, :], mixed, mask=written)
    else:
        common = 0
        if CAUSAL:
            UNIT: tl.constexpr = SPLIT if MERGE else KEYS
            common = _end(starts, request, first_row // GROUP, length, ENDS) // UNIT * UNIT
        total, mixed = _splits(q1, q2, key, slots, masks, live, common, stop, length, slot_size, value_at, factor,
                               key_dim, head_dim, KEYS, D1, D2, SPLIT, MERGE, LOOK, CAUSAL, WIDE)  # fmt: skip
        place = ((request * width + at) * kv_heads * GROUP + head) * value_dim
        tl.store(out + place[:, None] + column[None, :], mixed / tl.where(live, total, 1.0)[:, None], mask=written)


@triton.jit
def _gather(
    out, peaks, totals, mixtures, width, kv_heads, splits, value_dim, GROUP: tl.constexpr, D1: tl.constexpr,
    AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per query head: merge the splits of `_attend` in ascending order."""
    begin(PDL)
    row, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    request, kv_head = pair // kv_heads, pair % kv_heads
    column = tl.arange(0, D1)
    first = (pair * width * GROUP + row) * splits
    peak = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((1, D1), tl.float32)
    one = tl.arange(0, 1)
    for split in tl.range(0, splits, num_stages=AHEAD):
        part = first + split + one
        values = mixtures + part[:, None] * value_dim + column[None, :]
        more_peak = tl.load(peaks + part)
        # A skipped split wrote its peak only.
        there = more_peak > float("-inf")
        more_total = tl.where(there, tl.load(totals + part), 0.0)
        more = tl.where(there[:, None], tl.load(values, mask=(column < value_dim)[None, :], other=0.0), 0.0)
        peak, total, mixed = _merge(peak, total, mixed, more_peak, more_total, more)
    head = (request * width + row // GROUP) * kv_heads * GROUP + kv_head * GROUP + row % GROUP
    place = out + head * value_dim + one[:, None] + column[None, :]
    tl.store(place, mixed / total[:, None], mask=(column < value_dim)[None, :])


def _tile(q: Tensor, reads: SplitReads, value_dim: int, rows: int) -> tuple[AttentionShape, int, int]:
    """The tile of a step with `rows` queries for each key head, the number of splits, and their keys (0: equal
    shares)."""
    batch, width, _, head_dim = reads.query
    size, length = q.element_size(), reads.slots.shape[1]
    tile = shape(head_dim, value_dim, size, rows // width)
    usual = not tile.d2 and tile.rows == WIDE_TILE
    if not usual or (rows > WIDE_TILE and (reads.start is None or reads.sparse or size != 2 or tile.d1 > 128)):
        return tile, triton.cdiv(length, SPLIT), SPLIT
    memory = SHARED_MEMORY if supports_pdl(q.device) else SHARED_MEMORY // 2
    even = not reads.deterministic and not reads.sparse
    return fit(tile, rows, length, batch * reads.kv_heads, memory // size, even)


def paged_attention(q: Tensor, cache: Tensor, reads: SplitReads) -> Tensor:
    preconditions.contiguous("paged_attention", cache=cache)
    preconditions.dense("paged_attention", q=q)
    batch, width, heads, head_dim = reads.query
    latent = reads.value_dim is not None
    value_dim = head_dim if reads.value_dim is None else reads.value_dim
    out = q.new_empty(batch * width, heads * value_dim)
    if not out.numel():
        return out
    group, length = heads // reads.kv_heads, reads.slots.shape[1]
    rows, pairs, ends = width * group, batch * reads.kv_heads, reads.start is not None
    tile, splits, split = _tile(q, reads, value_dim, rows)
    tiles = triton.cdiv(rows, tile.rows)
    spread = splits > 1 and (split != SPLIT or pairs * tiles < FULL)
    marks = torch.empty(2, pairs, rows, splits if spread else 0, dtype=torch.float32, device=q.device)
    mixtures = torch.empty(*marks.shape[1:], value_dim, dtype=torch.float32, device=q.device)
    plane = reads.kv_heads * head_dim
    # A pointer that must be passed but is never read.
    starts = reads.slots if reads.start is None else reads.start
    _attend[pairs, tiles, splits if spread else 1](
        q, cache, reads.slots, reads.masks, starts, out, marks[0], marks[1], mixtures,
        *q.stride()[:3], width, reads.kv_heads, length,
        plane if latent else 2 * plane, 0 if latent else plane,
        reads.factor * LOG2_E, head_dim, value_dim, splits,
        GROUP=group, ROWS=tile.rows, KEYS=tile.keys, SPLIT=split, D1=tile.d1, D2=tile.d2, SPREAD=spread,
        MERGE=splits > 1, LOOK=reads.sparse or (tiles >= MANY_TILES and not ends), ENDS=ends,
        CAUSAL=reads.causal and ends and tile.rows == PREFILL_TILE, WIDE=wide(q),
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False, **launch(q),
    )  # fmt: skip
    if spread:
        _gather[rows, pairs](
            out, marks[0], marks[1], mixtures, width, reads.kv_heads, splits, value_dim, GROUP=group, D1=tile.d1,
            AHEAD=AHEAD, num_warps=1, enable_fp_fusion=False, **launch(q),
        )  # fmt: skip
    return out
