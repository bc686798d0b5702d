"""Cases of argmax: (logits,)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case


def _rows(batch: int, width: int, vocab: int, dtype: torch.dtype = torch.float32, ties: int = 0) -> Case:
    """ties: bounds the number of distinct values; 0 for no limit."""

    def make(g: Generator) -> tuple[Tensor]:
        drawn = torch.randn(batch, width, vocab, generator=g)
        return (((drawn * ties).round() if ties else drawn).to(dtype),)

    kind = f", {ties} ties" if ties else ""
    return Case(f"{batch} x {width} x {vocab} {str(dtype).removeprefix('torch.')}{kind}", make)


def _marked(g: Generator) -> tuple[Tensor]:
    """Rows with one or two infinities or NaN, and rows that are fully or almost fully masked."""
    logits = torch.randn(1, 6, 5000, generator=g)
    logits[0, 0, 4100:4102] = float("inf")
    logits[0, 1, [7, 4999]] = float("nan")
    logits[0, 2] = float("-inf")
    logits[0, 3, :4999] = float("-inf")
    logits[0, 4, 10], logits[0, 4, 4500] = float("inf"), float("nan")
    return (logits,)


CASES = (
    _rows(0, 3, 8),
    _rows(1, 1, 1),
    _rows(2, 3, 33),
    _rows(1, 2, 9001),
    _rows(3, 1, 6000, ties=1),
    _rows(2, 2, 5000, torch.bfloat16),
    _rows(1, 3, 4097, torch.float16, ties=2),
    Case("infinities and NaN", _marked),
)
