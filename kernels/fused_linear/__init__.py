"""A linear layer over few tokens, fused with its neighbouring operations into one launch."""

from __future__ import annotations

from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.fused_linear import eager
from specmatrix.kernels.fused_linear.eager import MAX_ROWS, NOTHING, PART, Fusion, NextNorm

__all__ = ["MAX_ROWS", "NOTHING", "PART", "Fusion", "NextNorm", "fused_linear"]


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
    wide = 2 * columns if fusion.gated else columns
    if weight.shape != (depth, wide):
        raise preconditions.shape_error("fused_linear", "weight", weight, (depth, wide))
    _fits(rows, columns, fusion)
    return select_backend(eager, x).fused_linear(x, weight, out, fusion)


def _fits(rows: int, columns: int, fusion: Fusion) -> None:
    """KernelError unless the fused operands have the shapes that `rows` rows of `columns` columns require."""
    sums, rotation, heads, next_norm = fusion.sums, fusion.rotation, fusion.heads, fusion.next_norm
    if sums is not None and (sums.dim() != 2 or sums.shape[0] != rows):
        raise preconditions.shape_error("fused_linear", "sums", sums, (rows, "parts"))
    if rotation is not None and (rotation.shape[0] != rows or heads * 2 * rotation.shape[1] > columns):
        raise preconditions.shape_error("fused_linear", "rotation", rotation, (rows, f"<= {columns} / (2 * {heads})"))
    if next_norm is not None and next_norm.scaled.shape != (rows, columns):
        raise preconditions.shape_error("fused_linear", "scaled", next_norm.scaled, (rows, columns))
    if next_norm is not None and next_norm.partial_sumsq.shape != (rows, -(-columns // PART)):
        raise preconditions.shape_error(
            "fused_linear", "partial_sumsq", next_norm.partial_sumsq, (rows, -(-columns // PART))
        )
    if (rotation is not None) + fusion.add + fusion.gated > 1:
        raise KernelError("fused_linear: at most one of rotation, add and gated may be set")
