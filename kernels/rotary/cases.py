"""Cases of rotary: (rows, rotation, heads)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _turns(rows: int, heads: int, pairs: int, spare: int = 0, dtype: torch.dtype = torch.float32) -> Case:
    """Rows of `heads` heads, and `spare` numbers behind them that stay."""

    def make(g: Generator) -> Arguments:
        angle = torch.randn(rows, pairs, generator=g) * 100
        x = torch.randn(rows, heads * 2 * pairs + spare, generator=g).to(dtype)
        return x, torch.complex(angle.cos(), angle.sin()), heads

    return Case(f"{rows} rows of {heads} x {pairs} pairs and {spare}, {str(dtype).removeprefix('torch.')}", make)


def _far(g: Generator) -> Arguments:
    """Rows so far apart that an int32 cannot count the way."""
    rows = torch.zeros(2**31 + 64, dtype=torch.bfloat16).as_strided((3, 40), (2**30, 1))
    angle = torch.randn(3, 10, generator=g)
    return rows.copy_(torch.randn(3, 40, generator=g)), torch.complex(angle.cos(), angle.sin()), 2


CASES = (
    _turns(0, 2, 4),
    _turns(1, 1, 1),
    _turns(3, 5, 3, 7),
    _turns(6, 3, 16, dtype=torch.bfloat16),
    _turns(2, 4, 9, 5, dtype=torch.float16),
    Case("rows far apart", _far, size="large"),
)
