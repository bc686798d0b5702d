"""accept_path without a loop: a node is accepted if it and all its ancestors match."""

from __future__ import annotations

import torch
from torch import Tensor


def accept_path(tokens: Tensor, parents: Tensor, emit: Tensor, depth: int, ancestors: Tensor) -> tuple[Tensor, Tensor]:
    nodes = tokens.shape[1]
    order = torch.arange(nodes, device=tokens.device)
    miss = (tokens != emit.gather(1, parents.clamp(min=0))) & (order > 0)
    accepted = ~(ancestors & miss[:, None]).any(2)
    count = accepted.sum(1)
    # A parent's number is smaller than its child's, so the path is the accepted nodes in ascending order.
    path = torch.where(accepted, order, nodes).sort(1).values[:, : depth + 1]
    order = order[: depth + 1]
    return torch.where(order < count[:, None], path, order), count
