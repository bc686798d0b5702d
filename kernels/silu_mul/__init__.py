"""The activation of a gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.silu_mul import eager


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up -> [M, inner], for gate_up [M, 2 * inner], gates first (SwiGLU, arXiv 2002.05202).

    Computed in float32, rounded once to gate_up's dtype. gate_up may have any row stride.
    KernelError on other shapes.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise preconditions.shape_error("silu_mul", "gate_up", gate_up, ("M", "2 * inner"))
    return select_backend(eager, gate_up).silu_mul(gate_up)
