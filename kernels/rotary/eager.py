"""rotary as one complex product."""

import torch
from torch import Tensor


def rotary(rows: Tensor, turn: Tensor, heads: int) -> None:
    pairs = turn.shape[1]
    part = rows[:, : heads * 2 * pairs]
    turned = torch.view_as_complex(part.float().contiguous().view(-1, heads, pairs, 2)) * turn[:, None]
    part.copy_(torch.view_as_real(turned).flatten(1))
