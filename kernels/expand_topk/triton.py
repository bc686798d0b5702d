"""expand_topk, one program per request: a child's rank is the number of children ahead of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions

STEP = 32


@triton.jit
def _score(scores, probs, at, topk, size):
    score = tl.load(scores + at // topk, mask=at < size, other=0.0)
    return score * tl.load(probs + at, mask=at < size, other=0.0)


@triton.jit
def _ordered(value):
    """NaN sorts first, as in torch."""
    return tl.where(value != value, float("inf"), value)


@triton.jit
def _expand(scores, probs, grown, best, chosen, beams, topk, BLOCK: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    size = beams * topk
    scores, probs = scores + row * beams, probs + row * size
    child = tl.arange(0, BLOCK)
    value = _score(scores, probs, child, topk, size)
    mine = _ordered(value)[:, None]
    rank = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, size, STEP):
        other = first + tl.arange(0, STEP)
        theirs = _ordered(_score(scores, probs, other, topk, size))[None, :]
        ahead = (theirs > mine) | ((theirs == mine) & (other[None, :] < child[:, None]))
        rank += tl.sum((ahead & (other < size)[None, :]).to(tl.int32), 1)
    tl.store(grown + row * size + child, value, mask=child < size)
    wins = (child < size) & (rank < topk)
    tl.store(best + row * topk + rank, value, mask=wins)
    tl.store(chosen + row * topk + rank, child.to(tl.int64), mask=wins)


def expand_topk(scores: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    preconditions.contiguous("expand_topk", scores=scores, probs=probs)
    batch, beams, topk = probs.shape
    grown, best = probs.new_empty(batch, beams * topk), probs.new_empty(batch, topk)
    chosen = torch.empty(batch, topk, dtype=torch.int64, device=probs.device)
    if batch:
        block = triton.next_power_of_2(beams * topk)
        _expand[(batch,)](scores, probs, grown, best, chosen, beams, topk, BLOCK=block, STEP=STEP)
    return grown, best, chosen
