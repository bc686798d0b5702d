"""Cases of silu_mul: (gate_up,)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _rows(rows: int, inner: int, dtype: torch.dtype = torch.float32) -> Case:
    def make(g: Generator) -> Arguments:
        return ((torch.randn(rows, 2 * inner, generator=g) * 4).to(dtype),)

    return Case(f"{rows} x {inner} {str(dtype).removeprefix('torch.')}", make)


def _far(g: Generator) -> Arguments:
    """A row stride for which row offsets exceed int32."""
    gate_up = torch.zeros(2**31 + 64, dtype=torch.bfloat16).as_strided((3, 50), (2**30, 1))
    return (gate_up.copy_(torch.randn(3, 50, generator=g)),)


CASES = (
    _rows(0, 8),
    _rows(1, 1),
    _rows(3, 33),
    _rows(2, 1500),
    _rows(5, 96, torch.bfloat16),
    _rows(4, 17, torch.float16),
    Case("rows far apart", _far, size="large"),
    Case("gates of any size", lambda g: (torch.tensor([[-200.0, -90.0, 0.0, 90.0, 1.0, 1.0, 1.0, 1.0]]),)),
)
