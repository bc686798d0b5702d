"""select_tree as two sorts and a search."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def select_tree(scores: Tensor, parent_list: Tensor, nodes: int, topk: int) -> tuple[Tensor, Tensor]:
    ranked = scores.argsort(dim=1, descending=True, stable=True)
    ids = ranked[:, : nodes - 1].sort(1).values
    above = parent_list.gather(1, ids // topk)
    # With -1 prepended for the root, a parent's index among the selected ids is its node number.
    numbered = torch.searchsorted(pad(ids, (1, 0), value=-1), above)
    return ids, pad(numbered, (1, 0), value=-1)
