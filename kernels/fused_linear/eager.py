"""fused_linear in torch calls, and the sizes and fusion records shared by its implementations."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from specmatrix.kernels.rotary import eager as rotary_eager
from specmatrix.kernels.silu_mul import eager as silu_eager

# MAX_ROWS: above it, separate launches are faster. PART: columns per partial sum of squares.
MAX_ROWS: Final = 64
PART: Final = 32


class NextNorm(NamedTuple):
    """The first half of the norm after a projection of N columns: its input and its two outputs.

    scale: the norm's weight [N]. scaled [M, N]: the rows times scale. partial_sumsq float32 [M, ceil(N / PART)]: sums
    of squares over PART columns each.
    """

    scale: Tensor
    scaled: Tensor
    partial_sumsq: Tensor


class Fusion(NamedTuple):
    """Prologue and epilogue fused into a linear layer over M rows; at most one of rotation, add and gated.

    sums, eps: second half of the preceding norm, whose `scaled` is x and whose `partial_sumsq` is sums: the product is
    divided by the row's root mean square, sqrt(sum of sums / K + eps).
    rotation complex64 [M, d / 2]: rotates the pairs of a row's first `heads` heads (`rotary`). add: out += product.
    gated: weight [K, 2 * N] holds the gate, then the up projection, and out is silu(gate) * up (`silu_mul`).
    next_norm: the first half of the following norm.
    """

    sums: Tensor | None = None
    eps: float = 0.0
    rotation: Tensor | None = None
    heads: int = 0
    add: bool = False
    gated: bool = False
    next_norm: NextNorm | None = None


NOTHING: Final = Fusion()


def fused_linear(x: Tensor, weight: Tensor, out: Tensor, fusion: Fusion) -> Tensor:
    product = x.float() @ weight.float()
    if fusion.sums is not None:
        product = product / (fusion.sums.sum(1, keepdim=True) / x.shape[1] + fusion.eps).sqrt()
    if fusion.gated:
        out.copy_(silu_eager.silu_mul(product.to(x.dtype)))
    else:
        out.copy_(product + out.float() if fusion.add else product)
    if fusion.rotation is not None:
        rotary_eager.rotary(out, fusion.rotation, fusion.heads)
    if fusion.next_norm is not None:
        scale, scaled, partial_sumsq = fusion.next_norm
        scaled.copy_(out.float() * scale.float())
        partial_sumsq.copy_(pad(out.float().square(), (0, -out.shape[1] % PART)).unflatten(1, (-1, PART)).sum(2))
    return out
