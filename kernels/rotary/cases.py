"""Cases of rotary: (rows, rotation, heads)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _rotations(rows: int, heads: int, pairs: int, spare: int = 0, dtype: torch.dtype = torch.float32) -> Case:
    """Rows of `heads` heads followed by `spare` elements that stay unchanged."""

    def make(g: Generator) -> Arguments:
        angle = torch.randn(rows, pairs, generator=g) * 100
        x = torch.randn(rows, heads * 2 * pairs + spare, generator=g).to(dtype)
        return x, torch.complex(angle.cos(), angle.sin()), heads

    return Case(f"{rows} rows of {heads} x {pairs} pairs and {spare}, {str(dtype).removeprefix('torch.')}", make)


def _far(g: Generator) -> Arguments:
    """A row stride for which row offsets exceed int32."""
    rows = torch.zeros(2**31 + 64, dtype=torch.bfloat16).as_strided((3, 40), (2**30, 1))
    angle = torch.randn(3, 10, generator=g)
    return rows.copy_(torch.randn(3, 40, generator=g)), torch.complex(angle.cos(), angle.sin()), 2


CASES = (
    _rotations(0, 2, 4),
    _rotations(1, 1, 1),
    _rotations(3, 5, 3, 7),
    _rotations(6, 3, 16, dtype=torch.bfloat16),
    _rotations(2, 4, 9, 5, dtype=torch.float16),
    Case("rows far apart", _far, size="large"),
)
