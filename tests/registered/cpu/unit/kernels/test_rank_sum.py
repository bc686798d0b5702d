"""The sum over ranks that read each other's memory: its halves, its limits, and when the engine takes it."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.collectives import Ranks
from specmatrix.errors import KernelError
from specmatrix.kernels.rank_sum import BLOCKS, BYTES, HALF, PeerMemory, rank_sum


@pytest.fixture
def peers():
    """Rank 0 of 2, whose peer has stored ones in its first half and twos in its second."""
    memory = PeerMemory(0, [torch.zeros(BYTES, dtype=torch.uint8) for _ in range(2)])
    for turn in (0, 1):
        memory.half(1, turn, torch.empty(HALF // 4)).fill_(turn + 1)
    return memory


def test_sums_take_the_halves_in_turns(peers):
    out = torch.zeros(3)
    seen = [rank_sum(torch.full((3,), 10.0), peers, out).tolist() for _ in range(3)]
    assert seen == [[12.0] * 3, [11.0] * 3, [12.0] * 3] and peers.rounds.tolist() == [3] * BLOCKS


def test_the_memory_has_room_for_both_halves_and_the_flags_of_every_block(peers):
    first, second = (peers.half(0, turn, torch.empty(HALF // 4)) for turn in (0, 1))
    first.fill_(1), second.fill_(2)
    assert not peers.flags(0).any() and peers.flags(0).shape == (BLOCKS, 2)
    peers.flags(0).fill_(-1)
    assert first.eq(1).all() and second.eq(2).all()


@pytest.mark.parametrize("onto", [None, torch.full((2, 3), 5.0)])
def test_ranks_sum_small_tensors_through_the_memory_of_their_peers(peers, onto):
    part = torch.full((2, 3), 10.0)
    found = Ranks(0, 2, ordered=False, peers=peers).total(part, onto)
    assert found.eq(12 if onto is None else 17).all() and found is (part if onto is None else onto)


def test_what_does_not_fit_or_is_laid_out_otherwise_is_refused(peers):
    large = torch.zeros(HALF // 4 + 1)
    assert not peers.fits(large) and peers.fits(large[1:])
    with pytest.raises(KernelError, match=r"rank_sum: part has shape \[262145\], must be \[<= 262144 elements\]"):
        rank_sum(large, peers, large)
    with pytest.raises(KernelError, match=r"rank_sum: out has shape \[5\], must be \[4\]"):
        rank_sum(torch.zeros(4), peers, torch.zeros(5))
    with pytest.raises(KernelError, match="rank_sum: part is not contiguous"):
        rank_sum(torch.zeros(4, 2)[:, 0], peers, torch.zeros(4))
