"""Gather and scatter rows of the relay buffers, which carry state from one step to the next."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module

__all__ = ["gather", "scatter"]


def gather(buffer: Tensor, rows: Tensor) -> Tensor:
    """buffer[rows] -> [B, ...]; buffer [R, ...] contiguous, rows int64 [B].

    KernelError on other shapes.
    """
    _check("gather", buffer, rows)
    if on_triton(buffer):
        return triton_module(__name__).gather(buffer, rows)
    return buffer.index_select(0, rows)


def scatter(buffer: Tensor, rows: Tensor, values: Tensor) -> None:
    """buffer[rows] = values, in place; values [B, ...] of buffer's dtype.

    Rows are distinct, except that a row may repeat with equal values (padding). KernelError as for `gather`.
    """
    _check("scatter", buffer, rows)
    if values.shape != (*rows.shape, *buffer.shape[1:]):
        raise preconditions.shape_error("scatter", "values", values, (*rows.shape, *buffer.shape[1:]))
    if on_triton(buffer):
        triton_module(__name__).scatter(buffer, rows, values)
    else:
        buffer.index_copy_(0, rows, values)


def _check(op: str, buffer: Tensor, rows: Tensor) -> None:
    if rows.dim() != 1:
        raise preconditions.shape_error(op, "rows", rows, ("B",))
