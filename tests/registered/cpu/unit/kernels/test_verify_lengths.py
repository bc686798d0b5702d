"""The lengths of a budget, against every choice of prefixes."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from specmatrix.errors import KernelError
from specmatrix.kernels.verify_lengths import verify_lengths
from specmatrix.kernels.verify_lengths.reference import verify_lengths as reference


@pytest.mark.parametrize("budget", range(11))
@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_as_many_drafts_is_likelier(budget, levels, seed):
    sure = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    held = ((sure * levels).round() / levels if levels else sure).cumprod(1)

    def gain(lengths: tuple[int, ...]) -> float:
        return sum(float(row[:length].sum()) for row, length in zip(held, lengths, strict=True))

    for found in (verify_lengths(held, torch.tensor([budget])), reference(held, torch.tensor([budget]))):
        taken = [*(found - 1).tolist()]
        assert sum(taken) == min(budget, int((held >= 1e-6).sum())) and min(taken) >= 0
        every = [lengths for lengths in product(range(4), repeat=3) if sum(lengths) <= budget]
        assert gain(tuple(taken)) == pytest.approx(max(map(gain, every)))


def test_of_equal_survivals_the_earlier_draft_is_first_then_the_lower_row():
    held = torch.full((3, 2), 0.5)
    assert [verify_lengths(held, torch.tensor([n])).tolist() for n in (1, 2, 4)] == [[2, 1, 1], [2, 2, 1], [3, 2, 2]]


def test_wrong_arguments():
    with pytest.raises(KernelError, match="verify_lengths: survivals has shape"):
        verify_lengths(torch.zeros(3), torch.tensor([1]))
    with pytest.raises(KernelError, match="verify_lengths: budget has shape"):
        verify_lengths(torch.zeros(3, 2), torch.tensor(1))
    with pytest.raises(KernelError, match="budget"):
        verify_lengths(torch.zeros(3, 2), torch.tensor([1.0]))
