"""The reference of select_tree."""

from __future__ import annotations

import torch
from torch import Tensor


def select_tree(scores: Tensor, parent_list: Tensor, nodes: int, topk: int) -> tuple[Tensor, Tensor]:
    batch = scores.shape[0]
    ids = torch.empty(batch, nodes - 1, dtype=torch.int64)
    parents = torch.full((batch, nodes), -1, dtype=torch.int64)
    for b in range(batch):
        row = scores[b].tolist()
        ranked = sorted((-score, candidate) for candidate, score in enumerate(row))
        chosen = sorted(candidate for _, candidate in ranked[: nodes - 1])
        ids[b] = torch.tensor(chosen)
        for node, candidate in enumerate(chosen, start=1):
            parent = int(parent_list[b, candidate // topk])
            parents[b, node] = 0 if parent < 0 else 1 + chosen.index(parent)
    return ids, parents
