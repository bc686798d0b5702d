"""Compact the KV of an accepted path: copy slots to slots in all layers."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def compact_kv(data: Tensor, source: Tensor, target: Tensor) -> None:
    """data[:, target] = data[:, source], in place; all sources are read before any target is written.

    data [L, S, ...] contiguous; source and target int64 [M]. Targets are distinct, except that a slot may be copied to
    itself more than once (padding). KernelError on other shapes.
    """
    if source.shape != target.shape or source.dim() != 1:
        raise preconditions.shape_error("compact_kv", "source", source, tuple(target.shape))
    if on_triton(data):
        triton_module(__name__).compact_kv(data, source, target)
    else:
        data.index_copy_(1, target, data.index_select(1, source))
