"""How many nodes of each chain a round verifies, by a budget over all rows."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions

LEAST = 1e-6


def verify_lengths(survivals: Tensor, budget: Tensor) -> Tensor:
    """1 and the number of a row's drafts that are among the `budget` largest survivals of all rows -> int64 [B].

    survivals float [B, D], which do not increase along a row, so that these drafts are its first ones; those below
    1e-6 never count. budget int64 [1], at least 0. Of equal survivals the earlier draft counts first, then the lower
    row.
    Torch operations without host synchronisation, so that CUDA graphs can capture them.
    """
    if survivals.dim() != 2:
        raise preconditions.shape_error("verify_lengths", "survivals", survivals, ("B", "D"))
    preconditions.shapes("verify_lengths", budget=(budget, (1,)))
    preconditions.dtype("verify_lengths", (torch.int64,), budget=budget)
    by_draft = survivals.t().flatten()  # so that a stable sort keeps the order of equal ones
    order = torch.sort(by_draft, descending=True, stable=True).indices
    first = torch.arange(len(order), device=order.device) < budget
    taken = torch.empty_like(first).scatter_(0, order, first) & (by_draft >= LEAST)
    return 1 + taken.view(survivals.shape[::-1]).sum(0)
