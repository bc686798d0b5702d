"""rank_sum, one program per block: store the own part, tell the others, wait for theirs, add all of them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels.pdl import begin, launch
from specmatrix.kernels.rank_sum import BLOCK, HALF, PeerMemory


@triton.jit
def _half(places, rank, turn, HALF: tl.constexpr, KIND: tl.constexpr):
    """A rank's half for a sum."""
    at = tl.load(places + rank) + (turn & 1).to(tl.int64) * HALF
    return tl.multiple_of(at.to(tl.pointer_type(KIND)), 16)


@triton.jit
def _flag(places, rank, block, other, SIZE: tl.constexpr, HALF: tl.constexpr):
    """Where rank `other` tells a block of `rank` that its part is stored."""
    return (tl.load(places + rank) + 2 * HALF).to(tl.pointer_type(tl.int32)) + block * SIZE + other


@triton.jit
def _sum(
    part, out, places, rounds, count, RANK: tl.constexpr, SIZE: tl.constexpr, ELEMENTS: tl.constexpr,
    HALF: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    block = tl.program_id(0)
    at = block * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < count
    kind = part.dtype.element_ty
    turn = tl.load(rounds + block) + 1
    tl.store(_half(places, RANK, turn, HALF, kind) + at, tl.load(part + at, mask=inside), mask=inside)
    # All threads of the program have stored before one of them tells the others.
    tl.debug_barrier()
    for other in tl.static_range(SIZE):
        if other != RANK:
            flag = _flag(places, other, block, RANK, SIZE, HALF)
            tl.atomic_xchg(flag, turn, sem="release", scope="sys")
    for other in tl.static_range(SIZE):
        if other != RANK:
            flag = _flag(places, RANK, block, other, SIZE, HALF)
            # The difference stays right when the numbers wrap around.
            while tl.atomic_add(flag, 0, sem="acquire", scope="sys") - turn < 0:
                pass
    tl.debug_barrier()
    total = tl.load(_half(places, 0, turn, HALF, kind) + at, mask=inside, cache_modifier=".cg")
    for other in tl.static_range(1, SIZE):
        more = tl.load(_half(places, other, turn, HALF, kind) + at, mask=inside, cache_modifier=".cg")
        total = (total.to(tl.float32) + more.to(tl.float32)).to(kind)
    if ADD:
        total = (tl.load(out + at, mask=inside).to(tl.float32) + total.to(tl.float32)).to(kind)
    tl.store(out + at, total, mask=inside)
    tl.store(rounds + block, turn)


def rank_sum(part: Tensor, peers: PeerMemory, out: Tensor, add: bool) -> Tensor:
    elements = BLOCK // part.element_size()
    _sum[(triton.cdiv(part.numel(), elements),)](
        part, out, peers.places, peers.rounds, part.numel(), RANK=peers.rank, SIZE=len(peers.buffers),
        ELEMENTS=elements, HALF=HALF, ADD=add, **launch(part),
    )  # fmt: skip
    return out
