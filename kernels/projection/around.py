"""What stands around a projection in a layer, and the sizes that all of its forms share."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor

# Rows up to which the weights are read as fast as memory gives them; columns that share a sum of squares.
FEW: Final = 16
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
