"""projection, one program for a tile of columns and a range of K, all rows in it.

Of the programs that share a tile, the one that comes last adds up the ranges in rising order and finishes the tile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import contract
from kernels.product import product, wide
from kernels.projection.eager import FEW, PART, Around

# Programs that a projection is cut into at least, and the numbers of K that one takes at least.
PROGRAMS, SHORTEST = 96, 512
# Programs that run one on a multiprocessor.
ALONE = 132
# Tiles of the widest projection that may be cut along K.
TILES = PROGRAMS


class Tile(NamedTuple):
    """Rows, columns and depth of a program's tile, and into how many ranges K is cut."""

    rows: int
    columns: int
    depth: int
    ranges: int
    warps: int
    stages: int


@triton.jit
def _turned(y, turn, first, pairs, turned, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pairs of columns below `turned` multiplied with their numbers; y is rounded already."""
    one, two = tl.split(tl.reshape(y.to(tl.float32), (ROWS, COLUMNS // 2, 2)))
    pair = first // 2 + tl.arange(0, COLUMNS // 2)
    by = turn[:, None] + (pair % pairs * 2)[None, :]
    inside = (pair * 2 < turned)[None, :]
    cosine, sine = tl.load(by, mask=inside, other=1.0), tl.load(by + 1, mask=inside, other=0.0)
    both = tl.join(one * cosine - two * sine, one * sine + two * cosine)
    return tl.reshape(both, (ROWS, COLUMNS)).to(y.dtype)


@triton.jit
def _finish(
    total, other, length, out, turn, scale, scaled, squares, sink, slots, first, rows, columns, o_m, pairs, turned,
    sunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    TURN: tl.constexpr, ONWARD: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """All that follows a product, for a tile whose columns begin at `first`."""
    m, column = tl.arange(0, ROWS), first + tl.arange(0, COLUMNS)
    at = out + m.to(tl.int64)[:, None] * o_m + column[None, :]
    written = (m < rows)[:, None] & (column < columns)[None, :]
    kind = out.dtype.element_ty
    if NORMED:
        total = total / length[:, None]
        other = other / length[:, None]
    if ADD:
        total += tl.load(at, mask=written, other=0.0).to(tl.float32)
    y = total.to(kind)
    if TURN:
        y = _turned(y, turn + tl.where(m < rows, m, 0) * pairs * 2, first, pairs, turned, ROWS, COLUMNS)
    if GATED:
        gate, up = y.to(tl.float32), other.to(kind).to(tl.float32)
        # Of a falling exponential only, which cannot overflow.
        fall = tl.exp(-tl.abs(gate))
        y = (gate * (tl.where(gate >= 0, 1.0, fall) / (1.0 + fall)) * up).to(kind)
    if SINK:
        begin = columns - sunk
        there = sink + tl.load(slots + m, mask=m < rows, other=0)[:, None] * sunk + (column - begin)[None, :]
        tl.store(there, y, mask=written & (column >= begin)[None, :])
        written = written & (column < begin)[None, :]
    tl.store(at, y, mask=written)
    if ONWARD:
        whole = tl.where(written, y.to(tl.float32), 0.0)
        by = tl.load(scale + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(scaled + m[:, None] * columns + column[None, :], whole * by[None, :], mask=written)
        tl.store(squares + m * tl.cdiv(columns, COLUMNS) + first // COLUMNS, tl.sum(whole * whole, 1), mask=m < rows)


@triton.jit(do_not_specialize=["rows"])
def _project(
    x, weight, out, sums, turn, scale, scaled, squares, sink, slots, parts, counts, rows, columns, depth, span, lengths,
    x_m, w_k, o_m, eps, pairs, turned, sunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, RANGES: tl.constexpr, LENGTHS: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, TURN: tl.constexpr, ONWARD: tl.constexpr, SINK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """LENGTHS: sums of a row, rounded up to a power of 2; 0 where no norm stands in front."""
    tile, part = tl.program_id(0), tl.program_id(1)
    m, first = tl.arange(0, ROWS), tile * COLUMNS
    n = first + tl.arange(0, COLUMNS)
    live, held = m < rows, n < columns
    x += m.to(tl.int64) * x_m
    weight += n
    length = tl.full((ROWS,), 1.0, tl.float32)
    if LENGTHS > 0:
        piece = tl.arange(0, LENGTHS)
        mask = live[:, None] & (piece < lengths)[None, :]
        length = tl.sqrt(
            tl.sum(tl.load(sums + m[:, None] * lengths + piece[None, :], mask=mask, other=0.0), 1) / depth + eps
        )
        length = tl.where(live, length, 1.0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    other = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(part * span, tl.minimum(part * span + span, depth), DEPTH):
        k = start + tl.arange(0, DEPTH)
        inside = k < depth
        row = (k.to(tl.int64) * w_k)[:, None]
        a = tl.load(x[:, None] + k[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        b = tl.load(weight[None, :] + row, mask=inside[:, None] & held[None, :], other=0.0)
        total += product(a, b, WIDE)
        if GATED:
            c = tl.load(weight[None, :] + columns + row, mask=inside[:, None] & held[None, :], other=0.0)
            other += product(a, c, WIDE)
    last = True
    if RANGES > 1:
        at = m[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        parts += tile * (RANGES * ROWS * COLUMNS)
        tl.store(parts + part * (ROWS * COLUMNS) + at, total)
        tl.debug_barrier()
        last = tl.atomic_add(counts + tile, 1) == RANGES - 1
        if last:
            tl.store(counts + tile, 0)
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
            for number in range(0, RANGES):
                total += tl.load(parts + number * (ROWS * COLUMNS) + at, cache_modifier=".cg")
    if last:
        _finish(total, other, length, out, turn, scale, scaled, squares, sink, slots, first, rows, columns, o_m, pairs,
                turned, sunk, ROWS, COLUMNS, LENGTHS > 0, GATED, ADD, TURN, ONWARD, SINK)  # fmt: skip


def tile(columns: int, depth: int, size: int, gated: bool) -> Tile:
    """A quick shape for numbers of `size` bytes."""
    if size == 4:
        return Tile(FEW, PART, 32, 1, warps=4, stages=3)
    if gated:
        # Deeper where each program has a multiprocessor to itself.
        return Tile(FEW, 64, 128 if columns <= 64 * ALONE else 64, 1, warps=8, stages=3)
    if columns >= 6144:
        return Tile(FEW, 64, 128, 1, warps=4, stages=4)
    ranges, tiles = 1, triton.cdiv(columns, PART)
    while tiles * ranges < PROGRAMS and depth >= 2 * ranges * SHORTEST:
        ranges *= 2
    return Tile(FEW, PART, 128, ranges, warps=4, stages=6)


@lru_cache(maxsize=16)
def _counters(device: torch.device) -> Tensor:
    """How many ranges of each tile have come; every launch leaves zeros behind."""
    with torch.inference_mode(False):
        return torch.zeros(TILES, dtype=torch.int32, device=device)


def projection(x: Tensor, weight: Tensor, out: Tensor, around: Around) -> Tensor:
    contract.dense("projection", x=x, out=out)
    sums, eps, turn, heads, add, gated, onward, sink = around
    scale, scaled, squares = (None, None, None) if onward is None else onward
    pool, slots = (None, None) if sink is None else sink
    named = {"weight": weight, "sums": sums, "turn": turn, "scale": scale, "scaled": scaled, "squares": squares}
    named |= {"rows": pool, "slots": slots}
    contract.contiguous("projection", **{name: given for name, given in named.items() if given is not None})
    (rows, depth), columns = x.shape, out.shape[1]
    if not out.numel():
        return out
    shape = tile(columns, depth, x.element_size(), gated)
    span = triton.cdiv(triton.cdiv(depth, shape.ranges), shape.depth) * shape.depth
    tiles, split = triton.cdiv(columns, shape.columns), shape.ranges > 1
    parts = torch.empty(tiles * shape.ranges * shape.rows * shape.columns if split else 0, device=x.device)
    lengths, pairs = 0 if sums is None else sums.shape[1], 1 if turn is None else turn.shape[1]
    # What is not given is not read.
    turns = parts if turn is None else torch.view_as_real(turn)
    given = (parts if one is None else one for one in (scale, scaled, squares, pool, slots))
    _project[tiles, shape.ranges](
        x, weight, out, parts if sums is None else sums, turns, *given, parts, _counters(x.device) if split else parts,
        rows, columns, depth, span, lengths, x.stride(0), weight.stride(0), out.stride(0), eps, pairs,
        2 * heads * pairs, 0 if pool is None else pool.shape[1],
        ROWS=shape.rows, COLUMNS=shape.columns, DEPTH=shape.depth, RANGES=shape.ranges,
        LENGTHS=triton.next_power_of_2(lengths) if lengths else 0, GATED=gated, ADD=add, TURN=turn is not None,
        ONWARD=onward is not None, SINK=sink is not None, WIDE=wide(x), num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    return out
