"""Cases of compact_kv: (data, source, target)."""

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case


def _move(layers: int, slots: int, source: list[int], target: list[int], dtype: torch.dtype = torch.float32) -> Case:
    def make(g: Generator) -> tuple[Tensor, ...]:
        data = torch.randn(layers, slots, 2, 3, generator=g).to(dtype)
        return data, torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64)

    return Case(f"{source} to {target} in {layers} layers, {str(dtype).removeprefix('torch.')}", make)


def _stamps(g: Generator) -> tuple[Tensor, ...]:
    return torch.randint(2**62, (1, 9), generator=g), torch.tensor([8, 3]), torch.tensor([3, 4])


def _latent(g: Generator) -> tuple[Tensor, ...]:
    return torch.randn(3, 7, 1, 1, 5, generator=g), torch.tensor([6, 2, 4]), torch.tensor([5, 3, 2])


def _far(g: Generator) -> tuple[Tensor, ...]:
    """More elements than int32 can index, with layers that start past the limit."""
    data = torch.zeros(3, 2**19 + 5, 1400, dtype=torch.uint8)
    data[:, -20:] = torch.randint(256, (3, 20, 1400), generator=g, dtype=torch.uint8)
    return data, torch.tensor([2**19 + 4, 2**19]), torch.tensor([2**19 - 7, 3])


CASES = (
    _move(1, 3, [], []),
    _move(2, 4, [3], [1]),
    _move(0, 4, [3], [1]),
    _move(1, 8, [2, 3, 4], [1, 2, 3]),
    _move(3, 8, [1, 2, 3], [2, 3, 4]),
    _move(2, 8, [5, 2], [2, 5]),
    _move(2, 8, [4, 0, 0, 0], [3, 0, 0, 0], torch.bfloat16),
    Case("stamps", _stamps),
    Case("one latent row per slot", _latent),
    Case("a large pool", _far, size="large"),
)
