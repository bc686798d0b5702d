"""fused_linear in torch calls, and what its forms share: their sizes, and the record of what stands around."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from specmatrix.kernels.rotary import eager as turns
from specmatrix.kernels.silu_mul import eager as gates

# Rows up to which one launch is quicker than a product and what stands around it; columns that share a sum of squares.
MAX_ROWS: Final = 64
PART: Final = 32


class NextNorm(NamedTuple):
    """The beginning of the norm behind a projection of N columns: what it reads, then what it leaves.

    scale: the norm's weight [N]. scaled [M, N]: the rows times it. squares float32 [M, ceil(N / PART)]: the sums of
    squares of PART columns each.
    """

    scale: Tensor
    scaled: Tensor
    partial_sumsq: Tensor


class Fusion(NamedTuple):
    """What a projection of M rows joins; at most one of turn, add and gated.

    sums, eps: the end of the norm in front, whose beginning left x as `scaled` and sums as `partial_sumsq`: the product is
    divided by the length of a row, sqrt(sum of sums / K + eps).
    turn complex64 [M, d / 2]: turns the pairs of the first `heads` heads of a row (`rotary`). add: out += the product.
    gated: weight [K, 2 * N] has gates, then as many others, and out is silu(gates) * others (`silu_mul`).
    onward: the beginning of the norm behind. sink: rows [S, C] and slots int64 [M]; the last C columns, keys and
    values, go to rows[slots] and not to out (`store_kv`).
    """

    sums: Tensor | None = None
    eps: float = 0.0
    rotation: Tensor | None = None
    heads: int = 0
    add: bool = False
    gated: bool = False
    next_norm: NextNorm | None = None
    kv_slots: tuple[Tensor, Tensor] | None = None


NOTHING: Final = Fusion()


def projection(x: Tensor, weight: Tensor, out: Tensor, fusion: Fusion) -> Tensor:
    if fusion.kv_slots is not None:
        whole = projection(x, weight, out.clone(), fusion._replace(kv_slots=None))
        rows, slots = fusion.kv_slots
        rows.index_copy_(0, slots, whole[:, -rows.shape[1] :])
        out[:, : -rows.shape[1]] = whole[:, : -rows.shape[1]]
        return out
    product = x.float() @ weight.float()
    if fusion.sums is not None:
        product = product / (fusion.sums.sum(1, keepdim=True) / x.shape[1] + fusion.eps).sqrt()
    if fusion.gated:
        out.copy_(gates.silu_mul(product.to(x.dtype)))
    else:
        out.copy_(product + out.float() if fusion.add else product)
    if fusion.rotation is not None:
        turns.rotary(out, fusion.rotation, fusion.heads)
    if fusion.next_norm is not None:
        scale, scaled, partial_sumsq = fusion.next_norm
        scaled.copy_(out.float() * scale.float())
        partial_sumsq.copy_(pad(out.float().square(), (0, -out.shape[1] % PART)).unflatten(1, (-1, PART)).sum(2))
    return out
