"""The definition of matmul."""

import torch
from torch import Tensor


def matmul(x: Tensor, weight: Tensor, out: Tensor | None = None, add: bool = False) -> Tensor:
    """In float64, rounded once."""
    product = x.double() @ weight.double()
    if out is None:
        return product.to(x.dtype)
    return out.copy_(torch.add(out, product) if add else product)
