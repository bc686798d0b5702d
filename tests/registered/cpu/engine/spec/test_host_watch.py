"""Every way to read a tensor on the host is seen, and nothing is left of the watch behind it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.spec.host_watch import READS, HostWatch

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

ROW, ONE = torch.tensor([1, 2]), torch.tensor(3)
WAYS = {
    "tolist": lambda: ROW.tolist(),
    "item": lambda: ONE.item(),
    "numpy": lambda: ROW.numpy(),
    "cpu": lambda: ROW.cpu(),
    "nonzero": lambda: ROW.nonzero(),
    "__bool__": lambda: 1 if ONE else 0,
    "__int__": lambda: int(ONE),
    "__float__": lambda: float(ONE),
    "__index__": lambda: range(9)[ONE],
    "__array__": lambda: np.asarray(ROW),
}


def test_every_way_is_tried():
    assert tuple(WAYS) == READS


@pytest.mark.parametrize("name", WAYS)
def test_a_read_is_seen_by_its_name_and_goes_on(name):
    before = {read: getattr(torch.Tensor, read) for read in READS}
    with HostWatch() as watch:
        inside = WAYS[name]()
    assert watch.seen == name
    assert np.array_equal(np.asarray(inside), np.asarray(WAYS[name]()))
    assert {read: getattr(torch.Tensor, read) for read in READS} == before


def test_what_stays_on_the_device_is_no_read():
    with HostWatch() as watch:
        total = (ROW + ONE).sum() * torch.where(ROW > 1, ROW, 0).max()
    assert watch.seen is None and total == 18


def test_the_first_read_is_the_one_told():
    with HostWatch() as watch:
        ROW.tolist()
        ONE.item()
    assert watch.seen == "tolist"


def test_watches_within_each_other_end_one_by_one():
    with HostWatch() as outer:
        with HostWatch() as inner:
            ONE.item()
        ROW.tolist()
    assert (outer.seen, inner.seen) == ("item", "item")
    ROW.tolist()
    assert "tolist" not in vars(torch.Tensor)


def test_a_watch_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), HostWatch():
        _ = 1 / 0
    assert "item" not in vars(torch.Tensor)
