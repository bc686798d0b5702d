"""projection in torch calls."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from kernels.projection.around import PART, Around
from kernels.rotary import eager as turns
from kernels.silu_mul import eager as gates


def projection(x: Tensor, weight: Tensor, out: Tensor, around: Around) -> Tensor:
    if around.sink is not None:
        whole = projection(x, weight, out.clone(), around._replace(sink=None))
        rows, slots = around.sink
        rows.index_copy_(0, slots, whole[:, -rows.shape[1] :])
        out[:, : -rows.shape[1]] = whole[:, : -rows.shape[1]]
        return out
    product = x.float() @ weight.float()
    if around.sums is not None:
        product = product / (around.sums.sum(1, keepdim=True) / x.shape[1] + around.eps).sqrt()
    if around.gated:
        out.copy_(gates.silu_mul(product.to(x.dtype)))
    else:
        out.copy_(product + out.float() if around.add else product)
    if around.turn is not None:
        turns.rotary(out, around.turn, around.heads)
    if around.onward is not None:
        scale, scaled, squares = around.onward
        scaled.copy_(out.float() * scale.float())
        squares.copy_(pad(out.float().square(), (0, -out.shape[1] % PART)).unflatten(1, (-1, PART)).sum(2))
    return out
