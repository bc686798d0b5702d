"""argmax in two launches: the maximum of each block of a row, then the maximum of those."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions

BLOCK = 4096


@triton.jit
def _best(values, places):
    """The largest value and its smallest index; NaN is larger than every number."""
    nan = values != values
    rank = tl.where(nan, float("inf"), values)
    top = tl.max(rank, 0)
    first = tl.min(tl.where(rank == top, places, 0x7FFFFFFF), 0)
    first_nan = tl.min(tl.where(nan, places, 0x7FFFFFFF), 0)
    found = first_nan < 0x7FFFFFFF
    return tl.where(found, float("nan"), top), tl.where(found, first_nan, first)


@triton.jit
def _blocks(logits, tops, firsts, vocab, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < vocab
    value = tl.load(logits + row * vocab + place, mask=inside, other=float("-inf")).to(tl.float32)
    top, first = _best(value, tl.where(inside, place, 0x7FFFFFFE))
    tl.store(tops + row * blocks + block, top)
    tl.store(firsts + row * blocks + block, first)


@triton.jit
def _rows(tops, firsts, out, blocks, BLOCKS: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS)
    inside = block < blocks
    value = tl.load(tops + row * blocks + block, mask=inside, other=float("-inf"))
    _, first = _best(value, tl.load(firsts + row * blocks + block, mask=inside, other=0x7FFFFFFE))
    tl.store(out + row, first.to(tl.int64))


def argmax(logits: Tensor) -> Tensor:
    preconditions.contiguous("argmax", logits=logits)
    batch, width, vocab = logits.shape
    out = torch.empty(batch, width, dtype=torch.int64, device=logits.device)
    if rows := batch * width:
        blocks = triton.cdiv(vocab, BLOCK)
        tops = torch.empty(rows, blocks, device=logits.device)
        firsts = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _blocks[rows, blocks](logits, tops, firsts, vocab, blocks, BLOCK=block, num_warps=8)
        few = triton.next_power_of_2(blocks)
        _rows[(rows,)](tops, firsts, out, blocks, BLOCKS=few, num_warps=1)
    return out
