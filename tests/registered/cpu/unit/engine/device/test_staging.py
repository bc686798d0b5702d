"""Staging: as many steps may wait unread as the lag allows, and one more is being filled."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.staging import StagingRing, StepOutput, floats, integers
from specmatrix.errors import LedgerError

CPU = torch.device("cpu")


def output(number: int) -> StepOutput:
    return StepOutput(tokens=torch.zeros(1, 1), count=torch.tensor(number))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_one_more_than_the_lag_may_wait(lag):
    ring = StagingRing(lag, CPU)
    waiting = [ring.put(output(i)) for i in range(lag + 1)]
    assert len({staged.slot for staged in waiting}) == lag + 1
    with pytest.raises(LedgerError, match=r"^no staging slot is free: none of their outputs was read$"):
        ring.put(output(9))
    assert int(ring.take(waiting[0]).count) == 0
    again = ring.put(output(7))
    assert again.slot == waiting[0].slot
    assert [int(ring.take(staged).count) for staged in (*waiting[1:], again)] == [*range(1, lag + 1), 7]


def test_a_taken_result_is_the_stored_one():
    ring = StagingRing(0, CPU)
    put = StepOutput(tokens=torch.arange(6).view(2, 3), count=torch.tensor([1, 3]), codes=torch.tensor([0, 4]))
    taken = ring.take(ring.put(put))
    assert [name for name, tensor in taken._asdict().items() if tensor is not None] == ["tokens", "count", "codes"]
    assert all(torch.equal(getattr(taken, name), getattr(put, name)) for name in ("tokens", "count", "codes"))


def test_padding_is_cut_off_every_row_and_the_stamps_are_of_the_step():
    rows = {name: torch.arange(8).view(4, 2) for name in StepOutput._fields}
    rows |= {"stamps": torch.tensor([5, 6, 7]), "drafts": None}
    cut = StepOutput(**rows).first(3)
    assert cut.drafts is None and cut.stamps.tolist() == [5, 6, 7]
    assert {len(tensor) for name, tensor in cut._asdict().items() if name not in ("drafts", "stamps")} == {3}


def test_numbers_arrive_as_they_are():
    numbers = [0, -1, 2**62, 5]
    sent = integers(numbers, torch.device("cpu"))
    assert (sent.dtype, sent.tolist()) == (torch.int64, numbers)
    assert integers(range(3), torch.device("cpu")).tolist() == [0, 1, 2]


def test_floats_are_rounded_as_torch_rounds_them():
    numbers = [0.1, 0.9, -1e-7, 3.0]
    assert torch.equal(floats(numbers, torch.device("cpu")), torch.tensor(numbers))
