"""matmul with a summation order that depends on K, N and the dtype only.

K is split into ranges; a range is summed tile by tile, and the ranges are added in ascending order. Products of few
rows use one program per range and a second launch that adds (split-K); others add the ranges within one program. With
many rows on Hopper, each multiprocessor runs one program, which takes tile after tile, loaded by its TMA.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.dot import dot, wide
from specmatrix.kernels.pdl import supports_pdl

# Numbers of programs that fill a GPU, and that occupy most of it.
FULL, SOME = 264, 96
# Columns per program in that count; limits on the number and length of ranges, which end at multiples of UNIT.
NARROW, MAX_RANGES, SHORTEST_RANGE, UNIT = 32, 8, 512, 128
# Products of more rows are streamed on Hopper.
MANY_ROWS = 64


class MatmulTile(NamedTuple):
    """Rows, columns and depth of a program's tile."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


STREAMED = (
    MatmulTile(128, 256, 64, warps=8, stages=3),
    MatmulTile(128, 128, 64, warps=4, stages=5),
    MatmulTile(128, 64, 64, warps=4, stages=6),
    MatmulTile(64, 64, 128, warps=4, stages=4),
)


@triton.jit
def _range(x, weight, live, held, first, span, depth, w_k, DEPTH: tl.constexpr, WIDE: tl.constexpr):
    """The sum over a range of K of length `span`, a multiple of DEPTH, clipped at its end. x: pointers to the tile's
    rows; weight: to its columns."""
    total = tl.zeros((x.shape[0], weight.shape[0]), tl.float32)
    for start in range(first, tl.minimum(first + span, depth), DEPTH):
        k = start + tl.arange(0, DEPTH)
        inside = k < depth
        a = tl.load(x[:, None] + k[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        b = tl.load(weight[None, :] + (k.to(tl.int64) * w_k)[:, None], mask=inside[:, None] & held[None, :], other=0.0)
        total += dot(a, b, WIDE)
    return total


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x, weight, out, parts, rows, columns, depth, span, x_h, x_m, w_h, w_k, w_n, o_h, o_m, ranges,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SPREAD: tl.constexpr, ADD: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One program per product, tile and, with SPREAD, range; its sum goes to parts [H, ranges, rows, columns]."""
    item = tl.program_id(2)
    which = (item // ranges if SPREAD else item).to(tl.int64)
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    live, held = m < rows, n < columns
    x, weight = x + which * x_h + m * x_m, weight + which * w_h + n * w_n
    written = live[:, None] & held[None, :]
    if SPREAD:
        part = item % ranges
        total = _range(x, weight, live, held, part * span, span, depth, w_k, DEPTH, WIDE)
        at = (item.to(tl.int64) * rows + m)[:, None] * columns + n[None, :]
        tl.store(parts + at, total, mask=written)
    else:
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for part in range(0, ranges):
            total += _range(x, weight, live, held, part * span, span, depth, w_k, DEPTH, WIDE)
        at = out + which * o_h + m[:, None] * o_m + n[None, :]
        if ADD:
            total += tl.load(at, mask=written, other=0.0).to(tl.float32)
        tl.store(at, total, mask=written)


@triton.jit(do_not_specialize=["rows"])
def _stream(
    x, weight, out, rows, columns, depth, o_m, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, TRANSPOSED: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program per multiprocessor, for a single range. x, weight: tensor descriptors; TRANSPOSED: of the weight's
    transpose. GROUP rows of tiles are taken column by column, so that their operands stay in the L2 cache."""
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        first, within = tile // (GROUP * across) * GROUP, tile % (GROUP * across)
        high = tl.minimum(down - first, GROUP)
        top, left = (first + within % high) * ROWS, within // high * COLUMNS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, depth, DEPTH):
            a = x.load([top, k])
            b = tl.trans(weight.load([left, k])) if TRANSPOSED else weight.load([k, left])
            total += dot(a, b, WIDE)
        m, n = top.to(tl.int64) + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
        written = (m < rows)[:, None] & (n < columns)[None, :]
        at = out + m[:, None] * o_m + n[None, :]
        if ADD:
            total += tl.load(at, mask=written, other=0.0).to(tl.float32)
        tl.store(at, total, mask=written)


@triton.jit(do_not_specialize=["rows"])
def _sum(parts, out, rows, columns, o_h, o_m, ranges, COLUMNS: tl.constexpr, ADD: tl.constexpr):
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    which = tl.program_id(2).to(tl.int64)
    held = n < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    for part in range(0, ranges):
        total += tl.load(parts + ((which * ranges + part) * rows + m) * columns + n, mask=held, other=0.0)
    at = out + which * o_h + m * o_m + n
    if ADD:
        total += tl.load(at, mask=held, other=0.0).to(tl.float32)
    tl.store(at, total, mask=held)


def tile(rows: int, columns: int, dtype: torch.dtype) -> MatmulTile:
    """A fast tile for `rows` rows; the choice changes no bit, as every tile sums over K in order."""
    if dtype is torch.float32:
        return MatmulTile(16, 32, 32, warps=4, stages=3)
    if rows > 256:
        return STREAMED[0]
    few = 16 if rows <= 16 else 64
    if columns >= 16384:
        return MatmulTile(few, 128, 64, warps=4, stages=4)
    if columns >= 6144:
        return MatmulTile(few, 64, 128, warps=4, stages=4) if rows <= 16 else MatmulTile(few, 64, 64, warps=4, stages=6)
    return MatmulTile(few, 32, 128, warps=4, stages=5)


def ranges(columns: int, depth: int) -> int:
    """The number of ranges of K, enough for a narrow product to occupy a GPU."""
    count = 1
    while count < MAX_RANGES and triton.cdiv(columns, NARROW) * count < SOME and depth >= 2 * count * SHORTEST_RANGE:
        count *= 2
    return count


def matmul(x: Tensor, weight: Tensor, out: Tensor | None, add: bool) -> Tensor:
    preconditions.dense("matmul", x=x)
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        raise KernelError(f"matmul: weight is not contiguous, nor its transpose (strides {list(weight.stride())})")
    if out is None:
        out = x.new_empty(*x.shape[:-1], weight.shape[-1])
    preconditions.dense("matmul", out=out)
    if x.dim() == 2:
        _run(x[None], weight[None], out[None], add)
    else:
        _run(x, weight, out, add)
    return out


@lru_cache(maxsize=16)
def processors(device: torch.device) -> int:
    """The number of a GPU's multiprocessors if they have a TMA (tensor memory accelerator), else 0."""
    return torch.cuda.get_device_properties(device).multi_processor_count if supports_pdl(device) else 0


def _described(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor | None:
    """What loads blocks [rows, columns] of a matrix; None if its rows are not dense or not aligned."""
    if matrix.stride(1) != 1 or matrix.stride(0) * matrix.element_size() % 16 or matrix.data_ptr() % 16:
        return None
    return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], [rows, columns])


def _streamed(x: Tensor, weight: Tensor, out: Tensor, add: bool) -> bool:
    """Compute out = x @ weight by `_stream`, in the largest tiles that occupy a GPU, if the operands allow it; returns
    whether they do."""
    (rows, depth), columns = x.shape, weight.shape[1]
    tiles = [triton.cdiv(rows, each.rows) * triton.cdiv(columns, each.columns) for each in STREAMED]
    chosen = next((place for place, count in enumerate(tiles) if count >= SOME), -1)
    shape, transposed = STREAMED[chosen], weight.stride(0) == 1
    a = _described(x, shape.rows, shape.depth)
    if transposed:
        b = _described(weight.mT, shape.columns, shape.depth)
    else:
        b = _described(weight, shape.depth, shape.columns)
    if a is None or b is None:
        return False
    _stream[(min(tiles[chosen], processors(x.device)),)](
        a, b, out, rows, columns, depth, out.stride(0), ROWS=shape.rows, COLUMNS=shape.columns, DEPTH=shape.depth,
        GROUP=8, TRANSPOSED=transposed, ADD=add, WIDE=wide(x), num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    return True


def _run(x: Tensor, weight: Tensor, out: Tensor, add: bool) -> None:
    (several, rows, depth), columns = x.shape, weight.shape[2]
    if not out.numel():
        return
    count = ranges(columns, depth)
    many = rows > MANY_ROWS and several == count == 1 and x.element_size() == 2 and processors(x.device)
    if many and _streamed(x[0], weight[0], out[0], add):
        return
    shape = tile(rows, columns, x.dtype)
    span = triton.cdiv(triton.cdiv(depth, count), UNIT) * UNIT
    grid = (triton.cdiv(rows, shape.rows), triton.cdiv(columns, shape.columns))
    spread = count > 1 and grid[0] * grid[1] * several < FULL
    parts = torch.empty(several * count if spread else 0, rows, columns, dtype=torch.float32, device=x.device)
    _multiply[*grid, several * (count if spread else 1)](
        x, weight, out, parts, rows, columns, depth, span, *x.stride()[:2], *weight.stride(), *out.stride()[:2], count,
        ROWS=shape.rows, COLUMNS=shape.columns, DEPTH=shape.depth, SPREAD=spread, ADD=add, WIDE=wide(x),
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    if spread:
        block = min(1024, triton.next_power_of_2(columns))
        grid = (rows, triton.cdiv(columns, block))
        _sum[*grid, several](parts, out, rows, columns, *out.stride()[:2], count, COLUMNS=block, ADD=add)
