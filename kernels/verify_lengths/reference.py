"""Reference of verify_lengths: one draft after another, each the best that is left."""

from __future__ import annotations

import torch
from torch import Tensor


def verify_lengths(survivals: Tensor, budget: Tensor) -> Tensor:
    """Gives the budget away draft by draft."""
    rows = survivals.tolist()
    taken = [0] * len(rows)
    for _ in range(int(budget)):
        heads = [
            (-row[count], count, index)
            for index, (row, count) in enumerate(zip(rows, taken, strict=True))
            if count < len(row) and row[count] >= 1e-6
        ]
        if not heads:
            break
        taken[min(heads)[2]] += 1
    return torch.tensor([1 + count for count in taken], dtype=torch.int64)
