"""Staging: as many steps may wait unread as the lag allows, and one more is being filled."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.core.errors import LedgerError
from specmatrix.engine.device.staging import StagingRing

pytestmark = pytest.mark.register(est_seconds=2, tier="cpu", stage="pr")

CPU = torch.device("cpu")


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_one_more_than_the_lag_may_wait(lag):
    ring = StagingRing(lag, CPU)
    waiting = [ring.put({"n": torch.tensor(i)}) for i in range(lag + 1)]
    assert len({staged.slot for staged in waiting}) == lag + 1
    with pytest.raises(LedgerError, match=r"^every staging slot still waits to be read$"):
        ring.put({"n": torch.tensor(9)})
    assert int(ring.take(waiting[0])["n"]) == 0
    again = ring.put({"n": torch.tensor(7)})
    assert again.slot == waiting[0].slot
    assert [int(ring.take(staged)["n"]) for staged in (*waiting[1:], again)] == [*range(1, lag + 1), 7]


def test_what_is_taken_is_what_was_put():
    ring = StagingRing(0, CPU)
    tensors = {"tokens": torch.arange(6).view(2, 3), "count": torch.tensor([1, 3])}
    taken = ring.take(ring.put(tensors))
    assert set(taken) == set(tensors) and all(torch.equal(taken[k], tensors[k]) for k in tensors)
