"""The reference of matmul."""

import torch
from torch import Tensor

PART = 4096


def wide_product(x: Tensor, weight: Tensor, sizes: bool = False) -> Tensor:
    """x @ weight in float64, or with `sizes` |x| @ |weight|; a large weight is converted in blocks."""
    product = torch.zeros(x.shape[0], weight.shape[1], dtype=torch.float64)
    for k in range(0, x.shape[1], PART):
        one, two = x[:, k : k + PART].double(), weight[k : k + PART].double()
        product += one.abs() @ two.abs() if sizes else one @ two
    return product


def matmul(x: Tensor, weight: Tensor, out: Tensor | None = None, add: bool = False) -> Tensor:
    """Computed in float64, rounded once."""
    product = wide_product(x, weight)
    if out is None:
        return product.to(x.dtype)
    return out.copy_(torch.add(out, product) if add else product)


def several(x: Tensor, weight: Tensor) -> Tensor:
    """One product at a time, [H * M, N]."""
    out = x.new_empty(*x.shape[:2], weight.shape[2])
    for place in range(len(x)):
        matmul(x[place], weight[place], out[place])
    return out.flatten(0, 1)
