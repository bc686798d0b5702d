"""Cases of rms_norm: (x, weight, eps), and into a buffer: (x, weight, eps, out)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _rows(rows: int, width: int, groups: int = 1, dtype: torch.dtype = torch.float32) -> Case:
    def make(g: Generator) -> Arguments:
        x = (torch.randn(rows, groups * width, generator=g) * 3).to(dtype)
        weight = torch.rand(groups, width, generator=g).to(dtype)
        return x, weight, 1e-5

    return Case(f"{rows} x {groups} x {width}, {str(dtype).removeprefix('torch.')}", make)


def _view(g: Generator) -> Arguments:
    return torch.randn(4, 30, generator=g)[:, 7:20], torch.ones(1, 13), 1e-6


def _far(g: Generator) -> Arguments:
    """A row stride for which row offsets exceed int32."""
    x = torch.zeros(2**31 + 64, dtype=torch.bfloat16).as_strided((3, 40), (2**30, 1))
    x.copy_(torch.randn(3, 40, generator=g))
    return x, torch.rand(1, 40, generator=g).to(torch.bfloat16), 1e-5


def _into(rows: int, width: int, groups: int, dtype: torch.dtype = torch.float32) -> Case:
    """Into the middle of a wider buffer."""

    def make(g: Generator) -> Arguments:
        x = torch.randn(rows, groups * width, generator=g).to(dtype)
        wide = torch.zeros(rows, groups * width + 5, dtype=dtype)
        return x, torch.rand(groups, width, generator=g).to(dtype), 1e-6, wide[:, 2:-3]

    return Case(f"{rows} x {groups} x {width} into a buffer, {str(dtype).removeprefix('torch.')}", make)


PLAIN_CASES = (
    _rows(0, 8),
    _rows(1, 1),
    _rows(1, 64),
    _rows(7, 33),
    _rows(12, 16, groups=6),
    _rows(5, 96, dtype=torch.bfloat16),
    _rows(6, 129, groups=3, dtype=torch.float16),
    Case("strided rows", _view),
    Case("rows far apart", _far, size="large"),
    Case("zeros", lambda g: (torch.zeros(2, 8), torch.ones(1, 8), 1e-5)),
)
INTO_CASES = (_into(0, 4, 2), _into(1, 16, 3), _into(6, 20, 4, torch.bfloat16))
