"""A projection of few tokens and what stands around it in a layer, in one launch."""

from __future__ import annotations

from torch import Tensor

from engine.core.errors import KernelError
from kernels import contract
from kernels.backend import chosen
from kernels.projection import eager
from kernels.projection.eager import FEW, PART

__all__ = ["FEW", "PART", "projection"]


def projection(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    sums: Tensor | None = None,
    eps: float = 0.0,
    turn: Tensor | None = None,
    heads: int = 0,
    add: bool = False,
    gated: bool = False,
    scale: Tensor | None = None,
    scaled: Tensor | None = None,
    squares: Tensor | None = None,
    sink: tuple[Tensor, Tensor] | None = None,
    checked: bool = False,
) -> Tensor:
    """x [M, K] @ weight [K, N] into `out` [M, N], M at most FEW; returns out. Sums are float32, rounded once.

    An RMS norm is split between the projection in front of it and the one behind it: the first leaves `scaled`
    [M, N], its rows times the norm's weight `scale` [N], and float32 `squares` [M, ceil(N / PART)], the sums of squares
    of PART columns each; the second takes them as x and `sums` and divides the product by the length of a row,
    sqrt(sum of sums / K + eps).
    turn complex64 [M, d / 2]: turns the pairs of the first `heads` heads of a row (`rotary`). add: out += the product.
    gated: weight [K, 2 * N] has gates, then as many others, and out is silu(gates) * others (`silu_mul`).
    At most one of turn, add and gated. sink: rows [S, C] and slots int64 [M]; the last C columns, keys and values, go
    to rows[slots] and not to out (`store_kv`).

    x and out may be views whose rows lie apart. KernelError on other shapes; with `checked` also on dtypes.
    """
    (rows, depth), columns = x.shape, out.shape[1]
    if rows > FEW:
        raise contract.shape_error("projection", "x", x, (f"<= {FEW}", depth))
    if out.shape[0] != rows:
        raise contract.shape_error("projection", "out", out, (rows, "N"))
    if weight.shape != (depth, 2 * columns if gated else columns):
        raise contract.shape_error("projection", "weight", weight, (depth, 2 * columns if gated else columns))
    if sums is not None and (sums.dim() != 2 or sums.shape[0] != rows):
        raise contract.shape_error("projection", "sums", sums, (rows, "parts"))
    if turn is not None and (turn.shape[0] != rows or heads * 2 * turn.shape[1] > columns):
        raise contract.shape_error("projection", "turn", turn, (rows, f"<= {columns} / (2 * {heads})"))
    if (scale is None) != (scaled is None) or (scale is None) != (squares is None):
        raise KernelError("projection: scale, scaled and squares are given together or not at all")
    if scaled is not None and scaled.shape != out.shape:
        raise contract.shape_error("projection", "scaled", scaled, tuple(out.shape))
    if squares is not None and squares.shape != (rows, -(-columns // PART)):
        raise contract.shape_error("projection", "squares", squares, (rows, -(-columns // PART)))
    if (turn is not None) + add + gated > 1:
        raise KernelError("projection: at most one of turn, add and gated may follow a product")
    if sink is not None and (sink[0].dim() != 2 or sink[0].shape[1] > columns or sink[1].shape != (rows,)):
        raise contract.shape_error("projection", "slots of the sink", sink[1], (rows,))
    if checked:
        contract.dtype("projection", (x.dtype,), weight=weight, out=out)
    return chosen(eager, x).projection(x, weight, out, sums, eps, turn, heads, add, gated, scale, scaled, squares, sink)
