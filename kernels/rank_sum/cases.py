"""Cases of rank_sum: (parts of all ranks, rank, out, add)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case
from specmatrix.kernels.rank_sum import HALF

BF16 = torch.bfloat16


def _case(size: int, rank: int, rows: int, columns: int, dtype: torch.dtype, add: bool = False) -> Case:
    def make(g: Generator) -> Arguments:
        parts = torch.randn(rows, size, columns, generator=g).to(dtype)
        return parts, rank, torch.randn(rows, columns, generator=g).to(dtype), add

    kind = str(dtype).removeprefix("torch.")
    # Triton's interpreter rounds bfloat16 towards zero.
    where: Literal["small", "medium"] = "medium" if dtype is BF16 else "small"
    return Case(f"rank {rank} of {size}, {rows} x {columns} {kind}{' added' * add}", make, where)


CASES = (
    _case(2, 0, 0, 8, torch.float32),
    _case(2, 1, 1, 1, torch.float32),
    _case(2, 0, 3, 70, torch.float16, add=True),
    _case(4, 2, 2, 2048, torch.float16),
    _case(8, 7, 1, 4101, torch.float16, add=True),
    _case(4, 1, 3, 1024, torch.float32, add=True),
    _case(2, 1, 1, HALF // 4, torch.float32, add=True),
    _case(2, 1, 5, 1030, BF16),
    _case(8, 3, 9, 4096, BF16, add=True),
)
