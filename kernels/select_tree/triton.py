"""select_tree in two launches: rank each candidate by counting those ahead of it, then number the parents."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions

STEP = 32


@triton.jit
def _ordered(score):
    """NaN sorts first, as in torch: every candidate needs a unique rank."""
    return tl.where(score != score, float("inf"), score)


@triton.jit
def _select(scores, ids, pool, wanted, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """One program per request: its `wanted` best candidates, in ascending order."""
    row = tl.program_id(0).to(tl.int64)
    candidate = tl.arange(0, BLOCK)
    mine = _ordered(tl.load(scores + row * pool + candidate, mask=candidate < pool, other=0.0))[:, None]
    rank = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, pool, STEP):
        other = first + tl.arange(0, STEP)
        theirs = _ordered(tl.load(scores + row * pool + other, mask=other < pool, other=0.0))[None, :]
        ahead = (theirs > mine) | ((theirs == mine) & (other[None, :] < candidate[:, None]))
        rank += tl.sum((ahead & (other < pool)[None, :]).to(tl.int32), 1)
    taken = (candidate < pool) & (rank < wanted)
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(ids + row * wanted + place, candidate.to(tl.int64), mask=taken)


@triton.jit
def _number(ids, parent_list, parents, wanted, listed, topk, BLOCK: tl.constexpr):
    """One program per request: a parent's node number is 1 plus the number of smaller selected ids."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < wanted
    id = tl.load(ids + row * wanted + place, mask=inside, other=0)
    above = tl.load(parent_list + row * listed + id // topk, mask=inside, other=-1)
    below = (id[None, :] < above[:, None]) & inside[None, :]
    number = tl.where(above < 0, 0, 1 + tl.sum(below.to(tl.int64), 1))
    tl.store(parents + row * (wanted + 1) + 1 + place, number, mask=inside)
    tl.store(parents + row * (wanted + 1), -1)


def select_tree(scores: Tensor, parent_list: Tensor, nodes: int, topk: int) -> tuple[Tensor, Tensor]:
    preconditions.contiguous("select_tree", scores=scores, parent_list=parent_list)
    batch, pool = scores.shape
    ids = torch.empty(batch, nodes - 1, dtype=torch.int64, device=scores.device)
    parents = torch.empty(batch, nodes, dtype=torch.int64, device=scores.device)
    if batch:
        _select[(batch,)](scores, ids, pool, nodes - 1, BLOCK=triton.next_power_of_2(pool), STEP=STEP)
        block = triton.next_power_of_2(nodes - 1)
        _number[(batch,)](ids, parent_list, parents, nodes - 1, parent_list.shape[1], topk, BLOCK=block)
    return ids, parents
