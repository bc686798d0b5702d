"""The activation of a gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up -> [M, inner], for gate_up [M, 2 * inner], gates first (SwiGLU, arXiv 2002.05202).

    Computed in float32, rounded once to gate_up's dtype. gate_up may have any row stride.
    KernelError on other shapes.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise preconditions.shape_error("silu_mul", "gate_up", gate_up, ("M", "2 * inner"))
    if on_triton(gate_up):
        return triton_module(__name__).silu_mul(gate_up)
    gate, up = gate_up.float().chunk(2, 1)
    return silu(gate).mul_(up).to(gate_up.dtype)
