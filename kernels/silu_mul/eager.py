"""silu_mul in torch calls."""

from torch import Tensor
from torch.nn.functional import silu


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, 1)
    return silu(gate).mul_(up).to(gate_up.dtype)
