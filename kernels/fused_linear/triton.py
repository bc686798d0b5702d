"""fused_linear with split-K: one program per tile of columns and range of K, covering all rows.

The last program of a tile to finish adds up its ranges in ascending order and runs the epilogue.
With PDL (`kernels.pdl`) a kernel's programs fill the SMs that its predecessor leaves free; several programs on one SM
while others idle cost more than the early start gains. `tiles` holds which sizes, stages and signals are fastest.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.dot import dot, wide
from specmatrix.kernels.fused_linear import PART, Fusion, tiles
from specmatrix.kernels.fused_linear.tiles import MAX_TILES, LinearTile
from specmatrix.kernels.pdl import launch, signal, supports_pdl, wait

TRANSPOSED_COLUMNS = tl.constexpr(tiles.TRANSPOSED_COLUMNS)


@triton.jit
def _read(
    at, sums, rotation, scale, m, n, live, held, first, columns, lengths, pairs, rotated,
    COLUMNS: tl.constexpr, LENGTHS: tl.constexpr, ADD: tl.constexpr, ROTATE: tl.constexpr, NEXT_NORM: tl.constexpr,
):  # fmt: skip
    """The inputs of `_finish` besides the product, loaded before the product starts."""
    # Placeholders for the inputs that are not used.
    pieces, before, cosine, sine, factor = m, m, m, m, m
    if LENGTHS > 0:
        piece = tl.arange(0, LENGTHS)
        there = live[:, None] & (piece < lengths)[None, :]
        pieces = tl.load(sums + m[:, None] * lengths + piece[None, :], mask=there, other=0.0)
    if ADD:
        before = tl.load(at, mask=live[:, None] & held[None, :], other=0.0)
    if ROTATE:
        pair = first // 2 + tl.arange(0, COLUMNS // 2)
        by = rotation + (tl.where(live, m, 0) * pairs * 2)[:, None] + (pair % pairs * 2)[None, :]
        inside = (pair * 2 < rotated)[None, :]
        cosine, sine = tl.load(by, mask=inside, other=1.0), tl.load(by + 1, mask=inside, other=0.0)
    if NEXT_NORM:
        factor = tl.load(scale + n, mask=held, other=0.0)
    return pieces, before, cosine, sine, factor


@triton.jit
def _product(
    x, weight, live, held, first, stop, depth, columns, w_k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sums over first..stop-1 of K, clipped at its end, and with GATED those of the up projection. x: pointers to
    the rows; weight: to the tile's columns.

    Tensor cores of Hopper read a left operand of at least 64 rows from shared memory, so the product of as many columns
    is computed transposed.
    """
    TRANSPOSED: tl.constexpr = COLUMNS >= TRANSPOSED_COLUMNS
    total = tl.zeros((COLUMNS, ROWS) if TRANSPOSED else (ROWS, COLUMNS), tl.float32)
    other = tl.zeros((COLUMNS, ROWS) if TRANSPOSED else (ROWS, COLUMNS), tl.float32)
    for start in range(first, tl.minimum(stop, depth), DEPTH):
        k = start + tl.arange(0, DEPTH)
        inside = k < depth
        row = (k.to(tl.int64) * w_k)[:, None]
        a = tl.load(x[:, None] + k[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        b = tl.load(weight[None, :] + row, mask=inside[:, None] & held[None, :], other=0.0)
        total += dot(tl.trans(b), tl.trans(a), WIDE) if TRANSPOSED else dot(a, b, WIDE)
        if GATED:
            c = tl.load(weight[None, :] + columns + row, mask=inside[:, None] & held[None, :], other=0.0)
            other += dot(tl.trans(c), tl.trans(a), WIDE) if TRANSPOSED else dot(a, c, WIDE)
    if TRANSPOSED:
        total, other = tl.trans(total), tl.trans(other)
    return total, other


@triton.jit
def _finish(
    total, other, pieces, before, cosine, sine, factor, at, scaled, partial_sumsq, m, n, live, held,
    first, columns, depth, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr,
    ADD: tl.constexpr, ROTATE: tl.constexpr, NEXT_NORM: tl.constexpr,
):  # fmt: skip
    """The epilogue, for a tile of columns n."""
    written = live[:, None] & held[None, :]
    kind = at.dtype.element_ty
    if NORMED:
        length = tl.where(live, tl.sqrt(tl.sum(pieces, 1) / depth + eps), 1.0)
        total = total / length[:, None]
        other = other / length[:, None]
    if ADD:
        total += before.to(tl.float32)
    y = total.to(kind)
    if ROTATE:
        # Pairs of adjacent columns, already rounded.
        one, two = tl.split(tl.reshape(y.to(tl.float32), (ROWS, COLUMNS // 2, 2)))
        both = tl.join(one * cosine - two * sine, one * sine + two * cosine)
        y = tl.reshape(both, (ROWS, COLUMNS)).to(kind)
    if GATED:
        gate, up = y.to(tl.float32), other.to(kind).to(tl.float32)
        # The exponential of a negative number cannot overflow.
        fall = tl.exp(-tl.abs(gate))
        y = (gate * (tl.where(gate >= 0, 1.0, fall) / (1.0 + fall)) * up).to(kind)
    tl.store(at, y, mask=written)
    if NEXT_NORM:
        whole = tl.where(written, y.to(tl.float32), 0.0)
        tl.store(scaled + m[:, None] * columns + n[None, :], whole * factor.to(tl.float32)[None, :], mask=written)
        sums, parts = tl.sum(tl.reshape(whole * whole, (ROWS, COLUMNS // PART, PART)), 2), tl.cdiv(columns, PART)
        part = first // PART + tl.arange(0, COLUMNS // PART)
        tl.store(partial_sumsq + m[:, None] * parts + part[None, :], sums, mask=live[:, None] & (part < parts)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _project(
    x, weight, out, sums, rotation, scale, scaled, partial_sumsq, parts, counts, rows, columns, depth,
    span, lengths, x_m, w_k, o_m, eps, pairs, rotated,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, RANGES: tl.constexpr, PART: tl.constexpr,
    LENGTHS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, ROTATE: tl.constexpr, NEXT_NORM: tl.constexpr,
    WIDE: tl.constexpr, LATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """LENGTHS: partial sums per row, rounded up to a power of 2; 0 without a preceding norm."""
    tile, part = tl.program_id(0), tl.program_id(1)
    m, first = tl.arange(0, ROWS), tile * COLUMNS
    n = first + tl.arange(0, COLUMNS)
    live, held = m < rows, n < columns
    if not LATE:
        signal(PDL)
    wait(PDL)
    at = out + m.to(tl.int64)[:, None] * o_m + n[None, :]
    pieces, before, cosine, sine, factor = _read(
        at, sums, rotation, scale, m, n, live, held, first, columns, lengths, pairs, rotated, COLUMNS, LENGTHS,
        ADD, ROTATE, NEXT_NORM,
    )  # fmt: skip
    total, other = _product(
        x + m.to(tl.int64) * x_m, weight + n, live, held, part * span, part * span + span, depth, columns, w_k, ROWS,
        COLUMNS, DEPTH, GATED, WIDE,
    )  # fmt: skip
    if LATE:
        signal(PDL)
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
            total, other, pieces, before, cosine, sine, factor, at, scaled, partial_sumsq, m, n, live,
            held, first, columns, depth, eps, ROWS, COLUMNS, PART, LENGTHS > 0, GATED, ADD, ROTATE,
            NEXT_NORM,
        )  # fmt: skip


@lru_cache(maxsize=256)
def chosen(rows: int, depth: int, columns: int, gated: bool, add: bool, size: int, device: torch.device) -> LinearTile:
    """The tile for elements of `size` bytes on a device."""
    one = tiles.projection(rows, depth, columns, gated, add)
    if size == 4:
        return LinearTile(one.rows, PART, 32, 1, warps=4, stages=3)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return tiles.tile(one, card, supports_pdl(device))


@lru_cache(maxsize=16)
def _counters(device: torch.device) -> Tensor:
    """The number of finished ranges per tile; every launch resets it to zero."""
    with torch.inference_mode(False):
        return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


def fused_linear(x: Tensor, weight: Tensor, out: Tensor, fusion: Fusion) -> Tensor:
    preconditions.dense("fused_linear", x=x, out=out)
    sums, eps, rotation, heads, add, gated, next_norm = fusion
    scale, scaled, partial_sumsq = (None, None, None) if next_norm is None else next_norm
    named = {
        "weight": weight,
        "sums": sums,
        "rotation": rotation,
        "scale": scale,
        "scaled": scaled,
        "partial_sumsq": partial_sumsq,
    }
    preconditions.contiguous("fused_linear", **{name: given for name, given in named.items() if given is not None})
    (rows, depth), columns = x.shape, out.shape[1]
    if not out.numel():
        return out
    shape = chosen(rows, depth, columns, gated, add, x.element_size(), x.device)
    span = triton.cdiv(triton.cdiv(depth, shape.ranges), shape.depth) * shape.depth
    count, split = triton.cdiv(columns, shape.columns), shape.ranges > 1
    parts = torch.empty(count * shape.ranges * shape.rows * shape.columns if split else 0, device=x.device)
    lengths, pairs = 0 if sums is None else sums.shape[1], 1 if rotation is None else rotation.shape[1]
    # Pointers that must be passed but are never read.
    turns = parts if rotation is None else torch.view_as_real(rotation)
    given = (parts if one is None else one for one in (scale, scaled, partial_sumsq))
    _project[count, shape.ranges](
        x, weight, out, parts if sums is None else sums, turns, *given, parts, _counters(x.device) if split else parts,
        rows, columns, depth, span, lengths, x.stride(0), weight.stride(0), out.stride(0), eps, pairs,
        2 * heads * pairs,
        ROWS=shape.rows, COLUMNS=shape.columns, DEPTH=shape.depth, RANGES=shape.ranges, PART=PART,
        LENGTHS=triton.next_power_of_2(lengths) if lengths else 0, GATED=gated, ADD=add, ROTATE=rotation is not None,
        NEXT_NORM=next_norm is not None, WIDE=wide(x), LATE=shape.late,
        num_warps=shape.warps, num_stages=shape.stages, **launch(x),
    )  # fmt: skip
    return out
