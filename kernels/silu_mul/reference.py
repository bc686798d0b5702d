"""The reference of silu_mul."""

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, 1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)
