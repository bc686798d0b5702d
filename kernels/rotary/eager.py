"""rotary as one complex multiplication."""

import torch
from torch import Tensor


def rotary(rows: Tensor, rotation: Tensor, heads: int) -> None:
    pairs = rotation.shape[1]
    part = rows[:, : heads * 2 * pairs]
    rotated = torch.view_as_complex(part.float().contiguous().view(-1, heads, pairs, 2)) * rotation[:, None]
    part.copy_(torch.view_as_real(rotated).flatten(1))
