"""RMS norm, with the addition of a residual in front of it."""

from __future__ import annotations

from torch import Tensor

from kernels import contract
from kernels.backend import chosen
from kernels.rms_norm import eager


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, checked: bool = False) -> Tensor:
    """h / sqrt(mean(h^2) + eps) * weight over the last axis (arXiv 1910.07467) -> [M, width], of x's dtype.

    x [M, width], may be a view whose rows lie apart; weight [G, width], of which row m takes number m % G: 1 for one
    weight, the number of heads where x is [tokens * heads, width]. residual [M, width]: then h = residual + x, rounded
    to x's dtype and left in `residual`; else h = x. Sums are float32, in an order that depends on the width alone.
    KernelError on other shapes; with `checked` also on dtypes.
    """
    if x.dim() != 2:
        raise contract.shape_error("rms_norm", "x", x, ("M", "width"))
    if weight.dim() != 2 or weight.shape[1] != x.shape[1] or not weight.shape[0]:
        raise contract.shape_error("rms_norm", "weight", weight, ("G >= 1", x.shape[1]))
    if residual is not None and residual.shape != x.shape:
        raise contract.shape_error("rms_norm", "residual", residual, tuple(x.shape))
    if checked:
        contract.dtype("rms_norm", (x.dtype,), weight=weight, residual=x if residual is None else residual)
    return chosen(eager, x).rms_norm(x, weight, eps, residual)
