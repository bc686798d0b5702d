"""Lists become int64 tensors whatever their numbers."""

from __future__ import annotations

import torch

from specmatrix.engine.device.pinned_copy import floats, integers


def test_numbers_arrive_as_they_are():
    numbers = [0, -1, 2**62, 5]
    sent = integers(numbers, torch.device("cpu"))
    assert (sent.dtype, sent.tolist()) == (torch.int64, numbers)
    assert integers(range(3), torch.device("cpu")).tolist() == [0, 1, 2]


def test_floats_are_rounded_as_torch_rounds_them():
    numbers = [0.1, 0.9, -1e-7, 3.0]
    assert torch.equal(floats(numbers, torch.device("cpu")), torch.tensor(numbers))
