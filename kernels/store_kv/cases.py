"""Cases of store_kv: (rows, slots, kv)."""

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case


def _store(slots: int, width: int, tokens: int, dtype: torch.dtype = torch.float32) -> Case:
    def make(g: Generator) -> tuple[Tensor, ...]:
        # Slots that are not written hold NaN and must keep it.
        rows = torch.full((slots, width), float("nan"), dtype=dtype)
        return rows, torch.randperm(slots, generator=g)[:tokens], torch.randn(tokens, width, generator=g).to(dtype)

    return Case(f"{tokens} of {slots} x {width} {str(dtype).removeprefix('torch.')}", make)


def _strided(g: Generator) -> tuple[Tensor, ...]:
    # kv as the models pass it: the last columns of a wider projection.
    return torch.zeros(9, 6), torch.tensor([8, 0, 3]), torch.randn(3, 11, generator=g)[:, 5:]


def _far(g: Generator) -> tuple[Tensor, ...]:
    """More elements than int32 can index."""
    rows = torch.zeros(2**20 + 9, 2056, dtype=torch.uint8)
    kv = torch.randint(256, (3, 2056), generator=g, dtype=torch.uint8)
    return rows, torch.tensor([2**20 + 8, 5, 2**20]), kv


CASES = (
    _store(5, 3, 0),
    _store(1, 1, 1),
    _store(7, 5, 3),
    _store(64, 12, 64),
    _store(33, 24, 17, torch.bfloat16),
    _store(33, 24, 17, torch.float16),
    Case("a view", _strided),
    Case("a large pool", _far, size="large"),
)
