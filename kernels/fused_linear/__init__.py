"""A linear layer over few tokens, fused with its neighbouring operations into one launch."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module
from specmatrix.kernels.rotary import rotary
from specmatrix.kernels.silu_mul import silu_mul

# MAX_ROWS: of one tile; above it, separate launches are faster. PART: columns per partial sum of squares.
MAX_ROWS: Final = 128
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


def fused_linear(x: Tensor, weight: Tensor, out: Tensor, fusion: Fusion = NOTHING) -> Tensor:
    """x [M, K] @ weight [K, N] into `out` [M, N], M at most MAX_ROWS; returns out. Sums are float32, rounded once.

    An RMS norm is split between the projections before and after it, see `Fusion`.

    x and out may have any row stride. KernelError on other shapes.
    """
    (rows, depth), columns = x.shape, out.shape[1]
    if rows > MAX_ROWS:
        raise preconditions.shape_error("fused_linear", "x", x, (f"<= {MAX_ROWS}", depth))
    if out.shape[0] != rows:
        raise preconditions.shape_error("fused_linear", "out", out, (rows, "N"))
    preconditions.shapes("fused_linear", weight=(weight, (depth, 2 * columns if fusion.gated else columns)))
    _fits(rows, columns, fusion)
    if on_triton(x):
        return triton_module(__name__).fused_linear(x, weight, out, fusion)
    product = x.float() @ weight.float()
    if fusion.sums is not None:
        product = product / (fusion.sums.sum(1, keepdim=True) / x.shape[1] + fusion.eps).sqrt()
    if fusion.gated:
        out.copy_(silu_mul(product.to(x.dtype)))
    else:
        out.copy_(product + out.float() if fusion.add else product)
    if fusion.rotation is not None:
        rotary(out, fusion.rotation, fusion.heads)
    if fusion.next_norm is not None:
        scale, scaled, partial_sumsq = fusion.next_norm
        scaled.copy_(out.float() * scale.float())
        partial_sumsq.copy_(pad(out.float().square(), (0, -out.shape[1] % PART)).unflatten(1, (-1, PART)).sum(2))
    return out


def _fits(rows: int, columns: int, fusion: Fusion) -> None:
    """KernelError unless the fused operands have the shapes that `rows` rows of `columns` columns require."""
    sums, rotation, heads, next_norm = fusion.sums, fusion.rotation, fusion.heads, fusion.next_norm
    if sums is not None and (sums.dim() != 2 or sums.shape[0] != rows):
        raise preconditions.shape_error("fused_linear", "sums", sums, (rows, "parts"))
    if rotation is not None and (rotation.shape[0] != rows or heads * 2 * rotation.shape[1] > columns):
        raise preconditions.shape_error("fused_linear", "rotation", rotation, (rows, f"<= {columns} / (2 * {heads})"))
    if next_norm is not None:
        sumsq = next_norm.partial_sumsq, (rows, -(-columns // PART))
        preconditions.shapes("fused_linear", scaled=(next_norm.scaled, (rows, columns)), partial_sumsq=sumsq)
    if (rotation is not None) + fusion.add + fusion.gated > 1:
        raise KernelError("fused_linear: at most one of rotation, add and gated may be set")
