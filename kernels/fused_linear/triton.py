"""projection, one program for a tile of columns and a range of K, all rows in it.

Of the programs that share a tile, the one that comes last adds up the ranges in rising order and finishes the tile.
A launch may begin early (`kernels.pdl`): its programs then spread over what the kernel in front leaves free, and
several that share a multiprocessor while others idle cost more than the early beginning gives. So the projections that
follow a short pause of the memory, behind attention and in front of the gates, have so many stages that a
multiprocessor holds one program of them; and a launch that lets its follower begin only behind its product is one whose
follower would crowd.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.dot import dot, wide
from specmatrix.kernels.fused_linear.eager import PART, Fusion
from specmatrix.kernels.pdl import fetch, launch, signal, starts_early, wait

# Programs that a projection is cut into at least, and the numbers of K that one takes at least.
PROGRAMS, SHORTEST = 96, 512
# Rows that the matrix unit takes at least.
LEAST = 16
# Programs that run one on a multiprocessor.
ALONE = 132
# Tiles of the widest projection that may be cut along K.
TILES = PROGRAMS
# Numbers of K whose weights a program that begins early fetches before it waits; and stages of depth 128 of which a
# multiprocessor holds one program, for 32 columns and for 64 twice.
AHEAD, LONE, LONE_GATED = 256, 11, 5
# Columns of a stream from which on its gates crowd where they begin early.
CROWDED = 4096
# Bytes of shared memory that a program of more rows may have where launches do not begin early.
ROOM_IN_TURN = 96 * 1024


class LinearTile(NamedTuple):
    """Rows, columns and depth of a program's tile, and into how many ranges K is cut.

    ahead: numbers of K whose weights are fetched before the wait of an early launch, a power of 2, 0 for none. late:
    the next launch may begin behind the product, else before it.
    """

    rows: int
    columns: int
    depth: int
    ranges: int
    warps: int
    stages: int
    ahead: int = 0
    late: bool = False


class Tall(NamedTuple):
    """Tiles of more rows: for streams of CROWDED columns or more, and for narrower ones."""

    wide: LinearTile
    narrow: LinearTile


# By rows and by what is projected: the quickest of a search at 32 and 48 rows of Llama-3.1-8B and Llama-3.2-1B on an
# H100. `_taller` says into how many ranges K is cut.
TALL: Final = {
    (32, "heads"): Tall(
        LinearTile(32, 64, 128, 1, 4, 6, AHEAD, late=True), LinearTile(32, 32, 128, 1, 4, 10, AHEAD, late=True)
    ),
    (64, "heads"): Tall(
        LinearTile(64, 64, 64, 1, 4, 10, AHEAD, late=True), LinearTile(64, 32, 64, 1, 4, 10, AHEAD, late=True)
    ),
    (32, "attended"): Tall(*[LinearTile(32, 32, 128, 1, 4, 10, AHEAD, late=True)] * 2),
    (64, "attended"): Tall(*[LinearTile(64, 32, 64, 1, 4, 10, AHEAD)] * 2),
    (32, "gate_up"): Tall(
        LinearTile(32, 64, 128, 1, 8, 4, late=True), LinearTile(32, 64, 128, 1, 8, 4, AHEAD, late=True)
    ),
    (64, "gate_up"): Tall(
        LinearTile(64, 64, 128, 1, 8, 3, late=True), LinearTile(64, 64, 128, 1, 8, 3, AHEAD, late=True)
    ),
    (32, "down"): Tall(*[LinearTile(32, 64, 128, 1, 4, 4, late=True)] * 2),
    (64, "down"): Tall(LinearTile(64, 64, 64, 1, 4, 6), LinearTile(64, 32, 128, 1, 4, 6, AHEAD, late=True)),
}


@triton.jit
def _read(
    at, sums, rotation, scale, slots, m, n, live, held, first, columns, lengths, pairs, rotated,
    COLUMNS: tl.constexpr, LENGTHS: tl.constexpr, ADD: tl.constexpr, TURN: tl.constexpr, ONWARD: tl.constexpr,
    SINK: tl.constexpr,
):  # fmt: skip
    """What `_finish` needs besides the product, all of it on its way before the product begins."""
    # What is not asked for stands for nothing.
    pieces, before, cosine, sine, factor, slot = m, m, m, m, m, m
    if LENGTHS > 0:
        piece = tl.arange(0, LENGTHS)
        there = live[:, None] & (piece < lengths)[None, :]
        pieces = tl.load(sums + m[:, None] * lengths + piece[None, :], mask=there, other=0.0)
    if ADD:
        before = tl.load(at, mask=live[:, None] & held[None, :], other=0.0)
    if TURN:
        pair = first // 2 + tl.arange(0, COLUMNS // 2)
        by = rotation + (tl.where(live, m, 0) * pairs * 2)[:, None] + (pair % pairs * 2)[None, :]
        inside = (pair * 2 < rotated)[None, :]
        cosine, sine = tl.load(by, mask=inside, other=1.0), tl.load(by + 1, mask=inside, other=0.0)
    if ONWARD:
        factor = tl.load(scale + n, mask=held, other=0.0)
    if SINK:
        slot = tl.load(slots + m, mask=live, other=0)
    return pieces, before, cosine, sine, factor, slot


@triton.jit
def _product(
    x, weight, live, held, first, stop, depth, columns, w_k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sums over first..stop-1 of K, or up to its end, and with GATED those of the columns that the gates let
    through. x: pointers to the rows; weight: to the tile's columns."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    other = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, tl.minimum(stop, depth), DEPTH):
        k = start + tl.arange(0, DEPTH)
        inside = k < depth
        row = (k.to(tl.int64) * w_k)[:, None]
        a = tl.load(x[:, None] + k[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        b = tl.load(weight[None, :] + row, mask=inside[:, None] & held[None, :], other=0.0)
        total += dot(a, b, WIDE)
        if GATED:
            c = tl.load(weight[None, :] + columns + row, mask=inside[:, None] & held[None, :], other=0.0)
            other += dot(a, c, WIDE)
    return total, other


@triton.jit
def _finish(
    total, other, pieces, before, cosine, sine, factor, slot, at, scaled, partial_sumsq, kv_slots, m, n, live, held,
    first, columns, depth, eps, sunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr,
    ADD: tl.constexpr, TURN: tl.constexpr, ONWARD: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """All that follows a product, for a tile of columns n."""
    written = live[:, None] & held[None, :]
    kind = at.dtype.element_ty
    if NORMED:
        length = tl.where(live, tl.sqrt(tl.sum(pieces, 1) / depth + eps), 1.0)
        total = total / length[:, None]
        other = other / length[:, None]
    if ADD:
        total += before.to(tl.float32)
    y = total.to(kind)
    if TURN:
        # Pairs of columns, rounded already.
        one, two = tl.split(tl.reshape(y.to(tl.float32), (ROWS, COLUMNS // 2, 2)))
        both = tl.join(one * cosine - two * sine, one * sine + two * cosine)
        y = tl.reshape(both, (ROWS, COLUMNS)).to(kind)
    if GATED:
        gate, up = y.to(tl.float32), other.to(kind).to(tl.float32)
        # Of a falling exponential only, which cannot overflow.
        fall = tl.exp(-tl.abs(gate))
        y = (gate * (tl.where(gate >= 0, 1.0, fall) / (1.0 + fall)) * up).to(kind)
    if SINK:
        begin = columns - sunk
        tl.store(kv_slots + slot[:, None] * sunk + (n - begin)[None, :], y, mask=written & (n >= begin)[None, :])
        written = written & (n < begin)[None, :]
    tl.store(at, y, mask=written)
    if ONWARD:
        whole = tl.where(written, y.to(tl.float32), 0.0)
        tl.store(scaled + m[:, None] * columns + n[None, :], whole * factor.to(tl.float32)[None, :], mask=written)
        sums, parts = tl.sum(tl.reshape(whole * whole, (ROWS, COLUMNS // PART, PART)), 2), tl.cdiv(columns, PART)
        part = first // PART + tl.arange(0, COLUMNS // PART)
        tl.store(partial_sumsq + m[:, None] * parts + part[None, :], sums, mask=live[:, None] & (part < parts)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _project(
    x, weight, out, sums, rotation, scale, scaled, partial_sumsq, kv_slots, slots, parts, counts, rows, columns, depth,
    span, lengths, x_m, w_k, o_m, eps, pairs, rotated, sunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, RANGES: tl.constexpr, PART: tl.constexpr,
    LENGTHS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, TURN: tl.constexpr, ONWARD: tl.constexpr,
    SINK: tl.constexpr, WIDE: tl.constexpr, AHEAD: tl.constexpr, LATE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """LENGTHS: sums of a row, rounded up to a power of 2; 0 where no norm stands in front."""
    tile, part = tl.program_id(0), tl.program_id(1)
    m, first = tl.arange(0, ROWS), tile * COLUMNS
    n = first + tl.arange(0, COLUMNS)
    live, held = m < rows, n < columns
    if EARLY and AHEAD > 0:
        row = tl.minimum(part * span + tl.arange(0, AHEAD), depth - 1).to(tl.int64) * w_k
        fetch(weight + first + row)
        if GATED:
            fetch(weight + columns + first + row)
    if not LATE:
        signal(EARLY)
    wait(EARLY)
    at = out + m.to(tl.int64)[:, None] * o_m + n[None, :]
    pieces, before, cosine, sine, factor, slot = _read(
        at, sums, rotation, scale, slots, m, n, live, held, first, columns, lengths, pairs, rotated, COLUMNS, LENGTHS,
        ADD, TURN, ONWARD, SINK,
    )  # fmt: skip
    total, other = _product(
        x + m.to(tl.int64) * x_m, weight + n, live, held, part * span, part * span + span, depth, columns, w_k, ROWS,
        COLUMNS, DEPTH, GATED, WIDE,
    )  # fmt: skip
    if LATE:
        signal(EARLY)
    last = True
    if RANGES > 1:
        place = m[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        parts += tile * (RANGES * ROWS * COLUMNS)
        tl.store(parts + part * (ROWS * COLUMNS) + place, total)
        tl.debug_barrier()
        last = tl.atomic_add(counts + tile, 1) == RANGES - 1
        if last:
            tl.store(counts + tile, 0)
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
            for number in range(0, RANGES):
                total += tl.load(parts + number * (ROWS * COLUMNS) + place, cache_modifier=".cg")
    if last:
        _finish(
            total, other, pieces, before, cosine, sine, factor, slot, at, scaled, partial_sumsq, kv_slots, m, n, live,
            held, first, columns, depth, eps, sunk, ROWS, COLUMNS, PART, LENGTHS > 0, GATED, ADD, TURN, ONWARD, SINK,
        )  # fmt: skip


def tile(rows: int, columns: int, depth: int, size: int, gated: bool, add: bool, early: bool) -> LinearTile:
    """A quick shape for numbers of `size` bytes. early: the launch begins early."""
    tall = max(LEAST, triton.next_power_of_2(rows))
    if size == 4:
        return LinearTile(tall, PART, 32, 1, warps=4, stages=3)
    # What is added is the output of attention or, from more numbers, of the gates.
    behind = add and depth <= columns
    if tall > LEAST:
        what = "gate_up" if gated else "heads" if not add else "attended" if behind else "down"
        return _taller(tall, what, columns, depth, early)
    if gated:
        if columns > 64 * ALONE:
            return LinearTile(tall, 64, 64, 1, warps=8, stages=3, late=True)
        # Deeper where each program has a multiprocessor to itself.
        found = LinearTile(tall, 64, 128, 1, warps=8, stages=3, late=True)
        return found._replace(stages=LONE_GATED, ahead=AHEAD) if early else found
    if columns >= 6144:
        return LinearTile(tall, 64, 128, 1, warps=4, stages=4)
    ranges = _ranges(columns, PART, depth)
    found = LinearTile(tall, PART, 128, ranges, warps=4, stages=6)
    if behind and early and triton.cdiv(columns, PART) * ranges <= ALONE:
        return found._replace(stages=LONE, ahead=AHEAD, late=columns >= CROWDED)
    return found


def _taller(tall: int, what: str, columns: int, depth: int, early: bool) -> LinearTile:
    """The tile of TALL, cut along K until its programs occupy a GPU; sums of gates are not cut."""
    tiles = TALL[tall, what]
    found = tiles.wide if min(columns, depth) >= CROWDED else tiles.narrow
    if what != "gate_up":
        found = found._replace(ranges=_ranges(columns, found.columns, depth))
    if early:
        return found
    stage = 2 * found.depth * (tall + found.columns * (2 if what == "gate_up" else 1))
    return found._replace(stages=min(found.stages, ROOM_IN_TURN // stage))


def _ranges(columns: int, width: int, depth: int) -> int:
    """Into how many ranges K is cut for tiles of `width` columns."""
    ranges, tiles = 1, triton.cdiv(columns, width)
    while tiles * ranges < PROGRAMS and depth >= 2 * ranges * SHORTEST:
        ranges *= 2
    return ranges


@lru_cache(maxsize=16)
def _counters(device: torch.device) -> Tensor:
    """How many ranges of each tile have come; every launch leaves zeros behind."""
    with torch.inference_mode(False):
        return torch.zeros(TILES, dtype=torch.int32, device=device)


def fused_linear(x: Tensor, weight: Tensor, out: Tensor, fusion: Fusion) -> Tensor:
    preconditions.dense("fused_linear", x=x, out=out)
    sums, eps, rotation, heads, add, gated, next_norm, kv_slots = fusion
    scale, scaled, partial_sumsq = (None, None, None) if next_norm is None else next_norm
    pool, slots = (None, None) if kv_slots is None else kv_slots
    named = {
        "weight": weight,
        "sums": sums,
        "rotation": rotation,
        "scale": scale,
        "scaled": scaled,
        "partial_sumsq": partial_sumsq,
    }
    named |= {"rows": pool, "slots": slots}
    preconditions.contiguous("fused_linear", **{name: given for name, given in named.items() if given is not None})
    (rows, depth), columns = x.shape, out.shape[1]
    if not out.numel():
        return out
    shape = tile(rows, columns, depth, x.element_size(), gated, add, starts_early(x.device))
    span = triton.cdiv(triton.cdiv(depth, shape.ranges), shape.depth) * shape.depth
    tiles, split = triton.cdiv(columns, shape.columns), shape.ranges > 1
    parts = torch.empty(tiles * shape.ranges * shape.rows * shape.columns if split else 0, device=x.device)
    lengths, pairs = 0 if sums is None else sums.shape[1], 1 if rotation is None else rotation.shape[1]
    # What is not given is not read.
    turns = parts if rotation is None else torch.view_as_real(rotation)
    given = (parts if one is None else one for one in (scale, scaled, partial_sumsq, pool, slots))
    _project[tiles, shape.ranges](
        x, weight, out, parts if sums is None else sums, turns, *given, parts, _counters(x.device) if split else parts,
        rows, columns, depth, span, lengths, x.stride(0), weight.stride(0), out.stride(0), eps, pairs,
        2 * heads * pairs, 0 if pool is None else pool.shape[1],
        ROWS=shape.rows, COLUMNS=shape.columns, DEPTH=shape.depth, RANGES=shape.ranges, PART=PART,
        LENGTHS=triton.next_power_of_2(lengths) if lengths else 0, GATED=gated, ADD=add, TURN=rotation is not None,
        ONWARD=next_norm is not None, SINK=kv_slots is not None, WIDE=wide(x), AHEAD=shape.ahead, LATE=shape.late,
        num_warps=shape.warps, num_stages=shape.stages, **launch(x),
    )  # fmt: skip
    return out
