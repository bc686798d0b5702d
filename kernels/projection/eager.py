"""projection in torch calls."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from torch.nn.functional import pad

from kernels.rotary import eager as turns
from kernels.silu_mul import eager as gates

# Rows up to which the weights are read as fast as memory gives them; columns that share a sum of squares.
FEW: Final = 16
PART: Final = 32


def projection(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    sums: Tensor | None,
    eps: float,
    turn: Tensor | None,
    heads: int,
    add: bool,
    gated: bool,
    scale: Tensor | None,
    scaled: Tensor | None,
    squares: Tensor | None,
    sink: tuple[Tensor, Tensor] | None,
) -> Tensor:
    if sink is not None:
        whole = projection(x, weight, out.clone(), sums, eps, turn, heads, add, gated, scale, scaled, squares, None)
        rows, slots = sink
        rows.index_copy_(0, slots, whole[:, -rows.shape[1] :])
        out[:, : -rows.shape[1]] = whole[:, : -rows.shape[1]]
        return out
    product = x.float() @ weight.float()
    if sums is not None:
        product = product / (sums.sum(1, keepdim=True) / x.shape[1] + eps).sqrt()
    if gated:
        out.copy_(gates.silu_mul(product.to(x.dtype)))
    else:
        out.copy_(product + out.float() if add else product)
    if turn is not None:
        turns.rotary(out, turn, heads)
    if scale is not None and scaled is not None and squares is not None:
        scaled.copy_(out.float() * scale.float())
        squares.copy_(pad(out.float().square(), (0, -out.shape[1] % PART)).unflatten(1, (-1, PART)).sum(2))
    return out
