"""The likeliest token of each row of logits."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def argmax(logits: Tensor) -> Tensor:
    """argmax over the last axis of float logits [B, W, V] -> int64 [B, W]; the first on ties, NaN above all others.

    KernelError on other shapes.
    """
    if logits.dim() != 3 or not logits.shape[2]:
        raise preconditions.shape_error("argmax", "logits", logits, ("B", "W", ">= 1"))
    if on_triton(logits):
        return triton_module(__name__).argmax(logits)
    return logits.argmax(-1)
