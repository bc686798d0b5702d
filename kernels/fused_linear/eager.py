"""projection in torch calls, and what its forms share: their sizes, and the record of what stands around."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from specmatrix.kernels.rotary import eager as turns
from specmatrix.kernels.silu_mul import eager as gates

# Rows up to which one launch is quicker than a product and what stands around it; columns that share a sum of squares.
FEW: Final = 64
PART: Final = 32


class Onward(NamedTuple):
    """The beginning of the norm behind a projection of N columns: what it reads, then what it leaves.

    scale: the norm's weight [N]. scaled [M, N]: the rows times it. squares float32 [M, ceil(N / PART)]: the sums of
    squares of PART columns each.
    """

    scale: Tensor
    scaled: Tensor
    squares: Tensor


class Around(NamedTuple):
    """What a projection of M rows joins; at most one of turn, add and gated.

    sums, eps: the end of the norm in front, whose beginning left x as `scaled` and sums as `squares`: the product is
    divided by the length of a row, sqrt(sum of sums / K + eps).
    turn complex64 [M, d / 2]: turns the pairs of the first `heads` heads of a row (`rotary`). add: out += the product.
    gated: weight [K, 2 * N] has gates, then as many others, and out is silu(gates) * others (`silu_mul`).
    onward: the beginning of the norm behind. sink: rows [S, C] and slots int64 [M]; the last C columns, keys and
    values, go to rows[slots] and not to out (`store_kv`).
    """

    sums: Tensor | None = None
    eps: float = 0.0
    turn: Tensor | None = None
    heads: int = 0
    add: bool = False
    gated: bool = False
    onward: Onward | None = None
    sink: tuple[Tensor, Tensor] | None = None


NOTHING: Final = Around()


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
