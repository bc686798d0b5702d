"""matmul as torch's matmul."""

import torch
from torch import Tensor


def matmul(x: Tensor, weight: Tensor, out: Tensor | None, add: bool) -> Tensor:
    if add and out is not None:
        return out.addmm_(x, weight) if x.dim() == 2 else out.baddbmm_(x, weight)
    return torch.mm(x, weight, out=out) if x.dim() == 2 else torch.bmm(x, weight, out=out)
