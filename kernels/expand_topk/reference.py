"""The reference of expand_topk."""

from __future__ import annotations

import torch
from torch import Tensor


def expand_topk(scores: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, beams, topk = probs.shape
    grown = torch.empty(batch, beams * topk)
    chosen = torch.empty(batch, topk, dtype=torch.int64)
    for b in range(batch):
        for beam in range(beams):
            for rank in range(topk):
                grown[b, beam * topk + rank] = scores[b, beam] * probs[b, beam, rank]
        ranked = sorted((-score, place) for place, score in enumerate(grown[b].tolist()))
        chosen[b] = torch.tensor([place for _, place in ranked[:topk]])
    return grown, grown.gather(1, chosen), chosen
