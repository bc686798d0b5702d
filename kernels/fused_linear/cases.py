"""Cases of fused_linear: (x, weight, out, sums, eps, rotation, heads, add, gated[, scale, scaled,
partial_sumsq])."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case
from specmatrix.kernels.fused_linear import PART


def _case(
    rows: int,
    depth: int,
    columns: int,
    dtype: torch.dtype = torch.float32,
    normed: bool = False,
    kind: Literal["", "add", "gated", "rotation"] = "",
    heads: tuple[int, int] = (0, 0),
    next_norm: bool = False,
    size: Literal["small", "medium"] = "small",
) -> Case:
    """columns: of out. normed: x comes from a norm. heads: number of rotated heads, and pairs per head. next_norm: a
    norm follows."""

    def make(g: Generator) -> Arguments:
        x = torch.randn(rows, depth, generator=g).to(dtype)
        weight = torch.randn(depth, columns * (2 if kind == "gated" else 1), generator=g) / depth**0.5
        out = torch.randn(rows, columns, generator=g).to(dtype)
        sums = torch.rand(rows, -(-depth // PART), generator=g) * PART if normed else None
        angle = torch.randn(rows, heads[1], generator=g)
        rotation = torch.polar(torch.ones_like(angle), angle) if kind == "rotation" else None
        rest: Arguments = ()
        if next_norm:
            scale = torch.rand(columns, generator=g).to(dtype)
            rest = scale, torch.zeros(rows, columns, dtype=dtype), torch.zeros(rows, -(-columns // PART))
        return x, weight.to(dtype), out, sums, 1e-5, rotation, heads[0], kind == "add", kind == "gated", *rest

    shape = f"{rows} x {depth} x {columns} {str(dtype).removeprefix('torch.')}"
    return Case(f"{shape}{' normed' if normed else ''} {kind}".strip(), make, size)


def _view(g: Generator) -> Arguments:
    """x and out with a row stride larger than the row."""
    x, out = torch.randn(3, 50, generator=g)[:, 5:38], torch.randn(3, 30, generator=g)[:, 4:13]
    return x, torch.randn(33, 9, generator=g) / 6, out, None, 0.0, None, 0, True, False


def _chain(
    rows: int, depth: int, middle: int, columns: int, dtype: torch.dtype, size: Literal["small", "medium"] = "small"
) -> Case:
    """(x, weight, out, scale, scaled, partial_sumsq, weight and out of the projection after the norm, eps)."""

    def make(g: Generator) -> Arguments:
        x, scale = torch.randn(rows, depth, generator=g).to(dtype), torch.rand(middle, generator=g).to(dtype)
        one = (torch.randn(depth, middle, generator=g) / depth**0.5).to(dtype)
        two = (torch.randn(middle, columns, generator=g) / middle**0.5).to(dtype)
        out, scaled, last = (torch.randn(rows, n, generator=g).to(dtype) for n in (middle, middle, columns))
        return x, one, out, scale, scaled, torch.rand(rows, -(-middle // PART), generator=g), two, last, 1e-5

    return Case(f"{rows} x {depth} x {middle} x {columns} {str(dtype).removeprefix('torch.')}", make, size)


BF16 = torch.bfloat16
CASES = (
    _case(0, 8, 4),
    _case(1, 1, 1),
    _case(2, 33, 5, normed=True),
    _case(3, 70, 40, kind="add"),
    _case(5, 130, 24, normed=True, kind="gated"),
    _case(4, 40, 70, BF16, kind="gated"),
    _case(7, 96, 28, normed=True, kind="rotation", heads=(3, 4)),
    _case(2, 1100, 33, BF16, kind="add"),
    _case(16, 64, 20, torch.float16, kind="rotation", heads=(2, 5)),
    _case(15, 1030, 12, BF16, normed=True),
    _case(17, 130, 24, normed=True, kind="gated"),
    _case(18, 130, 70, torch.float16, normed=True, kind="gated"),
    _case(39, 70, 66, BF16, kind="gated"),
    _case(70, 130, 40, BF16, kind="gated"),
    _case(21, 130, 40, torch.float16, normed=True),
    _case(33, 70, 40, BF16, normed=True, kind="rotation", heads=(3, 5)),
    _case(64, 1100, 33, BF16, kind="add"),
    _case(23, 1030, 70, BF16, kind="add"),
    _case(5, 70, 84, BF16, kind="rotation", heads=(3, 10)),
    _case(20, 70, 84, BF16, kind="rotation", heads=(3, 10)),
    Case("strided rows", _view),
    _case(1, 4096, 6144, BF16, normed=True, kind="rotation", heads=(40, 64), size="medium"),
    _case(8, 4096, 1434, BF16, normed=True, kind="gated", size="medium"),
    _case(16, 2048, 1030, BF16, kind="add", size="medium"),
    _case(48, 4096, 1434, BF16, normed=True, kind="gated", size="medium"),
    _case(24, 4096, 4100, BF16, normed=True, kind="gated", size="medium"),
    _case(40, 4096, 4100, BF16, normed=True, kind="gated", size="medium"),
    _case(24, 2048, 1030, torch.float16, normed=True, kind="gated", size="medium"),
    _case(128, 4096, 1434, BF16, kind="gated", size="medium"),
    _case(60, 2048, 1030, BF16, kind="add", size="medium"),
    _case(3, 4096, 6144, BF16, kind="rotation", heads=(40, 64), size="medium"),
    _case(24, 4096, 6144, BF16, kind="rotation", heads=(40, 64), size="medium"),
    _case(29, 2048, 3072, BF16, kind="rotation", heads=(40, 32), size="medium"),
    _case(48, 4096, 6144, BF16, kind="rotation", heads=(40, 64), size="medium"),
)
NEXT_NORM_CASES = (
    _case(0, 8, 4, next_norm=True),
    _case(1, 40, 130, next_norm=True),
    _case(3, 1100, 70, BF16, kind="add", next_norm=True),
    _case(41, 1030, 100, BF16, kind="add", next_norm=True),
    _case(19, 64, 70, BF16, kind="add", next_norm=True),
    _case(40, 64, 70, torch.float16, kind="add", next_norm=True),
    _case(6, 14336, 512, BF16, kind="add", next_norm=True, size="medium"),
    _case(13, 2048, 2048, BF16, kind="add", next_norm=True, size="medium"),
    _case(31, 2048, 2048, BF16, kind="add", next_norm=True, size="medium"),
    _case(32, 4200, 4100, BF16, kind="add", next_norm=True, size="medium"),
    _case(27, 4096, 4096, BF16, kind="add", next_norm=True, size="medium"),
    _case(47, 4096, 4096, BF16, kind="add", next_norm=True, size="medium"),
    _case(64, 4200, 4100, BF16, kind="add", next_norm=True, size="medium"),
)
CHAINED_CASES = (
    _chain(0, 8, 4, 8, torch.float32),
    _chain(1, 40, 70, 33, torch.float32),
    _chain(3, 300, 130, 66, BF16),
    _chain(2, 1100, 64, 40, BF16),
    _chain(18, 300, 130, 66, BF16),
    _chain(5, 2048, 2048, 1030, BF16, "medium"),
    _chain(30, 2048, 2048, 1030, BF16, "medium"),
    _chain(52, 4096, 4096, 2050, BF16, "medium"),
)
