"""Write the keys and values of new tokens into their slots."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def store_kv(rows: Tensor, slots: Tensor, kv: Tensor) -> None:
    """rows[slots] = kv, in place.

    rows [S, C]: one layer of a KV pool, one slot per row. slots int64 [M]; of equal slots (padding) any one wins.
    kv [M, C] of rows' dtype, may be a view. KernelError on other shapes.
    """
    preconditions.shapes("store_kv", kv=(kv, (slots.shape[0], rows.shape[1])))
    if on_triton(rows):
        triton_module(__name__).store_kv(rows, slots, kv)
    else:
        rows.index_copy_(0, slots, kv)
