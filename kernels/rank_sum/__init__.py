"""A sum over ranks that read each other's memory (a one-shot all-reduce)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module

# Bytes per program and the number of programs, which all run at once; a half holds one tensor.
BLOCK, BLOCKS = 4096, 256
HALF: Final = BLOCK * BLOCKS
MAX_RANKS: Final = 8
BYTES: Final = 2 * HALF + BLOCKS * MAX_RANKS * 4


class PeerMemory:
    """Memory of every rank that all of them read and write: two halves for tensors, used in turns, and flags.

    rank: this one. buffers: a uint8 [BYTES] of each rank, mapped into this process, zero before the first sum.
    A rank that writes a half has seen the others' flags of the sum before, so they have read that half's last tensor.
    places int64 [size]: the buffers' addresses. rounds int32 [BLOCKS]: the sums that each program has taken part in;
    they count in device memory, so that a CUDA graph can be replayed.
    """

    def __init__(self, rank: int, buffers: Sequence[Tensor]) -> None:
        self.rank, self.buffers = rank, buffers
        device = buffers[rank].device
        self.places = torch.tensor([buffer.data_ptr() for buffer in buffers], device=device)
        self.rounds = torch.zeros(BLOCKS, dtype=torch.int32, device=device)

    def fits(self, part: Tensor) -> bool:
        """Whether `rank_sum` can sum tensors of this size."""
        return part.numel() * part.element_size() <= HALF

    def half(self, rank: int, turn: int, like: Tensor) -> Tensor:
        """A rank's half for the sum number `turn`, as elements of `like` in its shape."""
        size = like.numel() * like.element_size()
        return self.buffers[rank][turn % 2 * HALF :][:size].view(like.dtype).view(like.shape)

    def flags(self, rank: int) -> Tensor:
        """int32 [BLOCKS, size]: for each program of a rank, the last sum for which each other rank has stored its
        part."""
        return self.buffers[rank][2 * HALF :].view(torch.int32)[: BLOCKS * len(self.buffers)].view(BLOCKS, -1)


def rank_sum(part: Tensor, peers: PeerMemory, out: Tensor, add: bool = False) -> Tensor:
    """The sum of all ranks' `part`, in the order of the ranks and rounded after each addition, into `out`, which may be
    `part`; with `add`, out += the sum. Bitwise equal on all ranks, which call it in the same order with equal shapes.

    float [...] of equal shapes and dtypes, contiguous, at most HALF bytes. On a CPU the others must have stored their
    parts before. KernelError on other tensors.
    """
    if not peers.fits(part):
        raise preconditions.shape_error("rank_sum", "part", part, (f"<= {HALF // part.element_size()} elements",))
    preconditions.contiguous("rank_sum", part=part, out=out)
    preconditions.shapes("rank_sum", out=(out, tuple(part.shape)))
    if not part.numel():
        return out
    if on_triton(part):
        return triton_module(__name__).rank_sum(part, peers, out, add)
    peers.rounds += 1
    turn = int(peers.rounds[0])
    peers.half(peers.rank, turn, part).copy_(part)
    total, *others = (peers.half(rank, turn, part) for rank in range(len(peers.buffers)))
    for other in others:
        total = total + other
    return out.add_(total) if add else out.copy_(total)
