"""matmul as torch's own."""

import torch
from torch import Tensor


def matmul(x: Tensor, weight: Tensor, out: Tensor | None, add: bool) -> Tensor:
    return out.addmm_(x, weight) if add and out is not None else torch.mm(x, weight, out=out)
