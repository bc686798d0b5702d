"""The reference of rank_sum."""

from __future__ import annotations

from torch import Tensor


def rank_sum(parts: Tensor, rank: int, out: Tensor, add: bool) -> Tensor:
    """parts [rows, size, columns]: those of all ranks; which of them calls makes no difference. In float64, rounded
    after each addition."""
    total, *others = parts.unbind(1)
    for other in others:
        total = (total.double() + other.double()).to(total.dtype)
    return out.copy_(out.double() + total.double() if add else total)
