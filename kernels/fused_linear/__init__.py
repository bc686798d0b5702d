"""A projection of few tokens and what stands around it in a layer, in one launch."""

from __future__ import annotations

from torch import Tensor

from specmatrix.engine.core.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import chosen
from specmatrix.kernels.fused_linear import eager
from specmatrix.kernels.fused_linear.eager import FEW, NOTHING, PART, Around, Onward

__all__ = ["FEW", "PART", "Around", "Onward", "projection"]


def projection(x: Tensor, weight: Tensor, out: Tensor, around: Around = NOTHING, checked: bool = False) -> Tensor:
    """x [M, K] @ weight [K, N] into `out` [M, N], M at most FEW; returns out. Sums are float32, rounded once.

    An RMS norm is split between the projection in front of it and the one behind it, see `Around`.

    x and out may be views whose rows lie apart. KernelError on other shapes; with `checked` also on dtypes.
    """
    (rows, depth), columns = x.shape, out.shape[1]
    if rows > FEW:
        raise preconditions.shape_error("projection", "x", x, (f"<= {FEW}", depth))
    if out.shape[0] != rows:
        raise preconditions.shape_error("projection", "out", out, (rows, "N"))
    wide = 2 * columns if around.gated else columns
    if weight.shape != (depth, wide):
        raise preconditions.shape_error("projection", "weight", weight, (depth, wide))
    _fits(rows, columns, around)
    if checked:
        preconditions.dtype("projection", (x.dtype,), weight=weight, out=out)
    return chosen(eager, x).projection(x, weight, out, around)


def _fits(rows: int, columns: int, around: Around) -> None:
    """KernelError unless what stands around has the shapes that `rows` rows of `columns` columns ask for."""
    sums, turn, heads, onward, sink = around.sums, around.turn, around.heads, around.onward, around.sink
    if sums is not None and (sums.dim() != 2 or sums.shape[0] != rows):
        raise preconditions.shape_error("projection", "sums", sums, (rows, "parts"))
    if turn is not None and (turn.shape[0] != rows or heads * 2 * turn.shape[1] > columns):
        raise preconditions.shape_error("projection", "turn", turn, (rows, f"<= {columns} / (2 * {heads})"))
    if onward is not None and onward.scaled.shape != (rows, columns):
        raise preconditions.shape_error("projection", "scaled", onward.scaled, (rows, columns))
    if onward is not None and onward.squares.shape != (rows, -(-columns // PART)):
        raise preconditions.shape_error("projection", "squares", onward.squares, (rows, -(-columns // PART)))
    if (turn is not None) + around.add + around.gated > 1:
        raise KernelError("projection: at most one of turn, add and gated may follow a product")
    if sink is not None and (sink[0].dim() != 2 or sink[0].shape[1] > columns):
        raise preconditions.shape_error("projection", "rows of the sink", sink[0], ("S", f"<= {columns}"))
    if sink is not None and sink[1].shape != (rows,):
        raise preconditions.shape_error("projection", "slots of the sink", sink[1], (rows,))
