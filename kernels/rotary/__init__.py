"""Rotary position embedding (RoFormer, arXiv 2104.09864), in place."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def rotary(rows: Tensor, rotation: Tensor, heads: int) -> None:
    """Rotate the pairs of the first `heads` heads of each row, in place.

    rows [M, >= heads * d], the two elements of a pair adjacent; rotation complex64 [M, d / 2], the factor of each pair.
    Products are float32, rounded once to rows' dtype.
    KernelError on other shapes.
    """
    if rows.dim() != 2 or rotation.dim() != 2 or rows.shape[1] < heads * 2 * rotation.shape[1]:
        raise preconditions.shape_error("rotary", "rows", rows, ("M", f">= {heads * 2 * rotation.shape[-1]}"))
    if rotation.shape[0] != rows.shape[0]:
        raise preconditions.shape_error("rotary", "rotation", rotation, (rows.shape[0], "d / 2"))
    if on_triton(rows):
        triton_module(__name__).rotary(rows, rotation, heads)
    else:
        pairs = rotation.shape[1]
        part = rows[:, : heads * 2 * pairs]
        rotated = torch.view_as_complex(part.float().contiguous().view(-1, heads, pairs, 2)) * rotation[:, None]
        part.copy_(torch.view_as_real(rotated).flatten(1))
