"""Every way to read a tensor on the host is detected, and the detector leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from specmatrix.matrix.conformance.sync_detector import OPERATIONS, READS, SyncDetector, read_of

WATCHED = """
import sys
import torch
from specmatrix.matrix.conformance.sync_detector import SyncDetector
with SyncDetector():
    torch.ones(2) + 1
print("torch._dynamo" in sys.modules)
"""
ROW, ONE = torch.tensor([1, 2]), torch.tensor(3)
WAYS = {
    "tolist": lambda: ROW.tolist(),
    "item": lambda: ONE.item(),
    "numpy": lambda: ROW.numpy(),
    "cpu": lambda: ROW.cpu(),
    "nonzero": lambda: ROW.nonzero(),
    "to": lambda: ROW.to("cpu"),
    "__repr__": lambda: str(ROW),
    "__bool__": lambda: 1 if ONE else 0,
    "__int__": lambda: int(ONE),
    "__float__": lambda: float(ONE),
    "__index__": lambda: range(9)[ONE],
    "__array__": lambda: np.asarray(ROW),
}
OPERATED = {
    "torch.is_nonzero": lambda: torch.is_nonzero(ONE),
    "torch.equal": lambda: torch.equal(ROW, ROW),
    "torch.allclose": lambda: torch.allclose(ROW, ROW),
    "torch.nonzero": lambda: torch.nonzero(ROW),
    "torch.argwhere": lambda: torch.argwhere(ROW),
    "torch.masked_select": lambda: torch.masked_select(ROW, ROW > 1),
    "torch.unique": lambda: torch.unique(ROW),
    "torch.unique_consecutive": lambda: torch.unique_consecutive(ROW),
    "torch.bincount": lambda: torch.bincount(ROW),
    "torch.where with one argument": lambda: torch.where(ROW > 1)[0],
    "indexing by a mask": lambda: ROW[ROW > 1],
    "writing several numbers under a mask": lambda: ROW.clone().index_put_((ROW > 0,), ROW),
    "torch.repeat_interleave": lambda: torch.repeat_interleave(ROW, ROW),
    "torch.one_hot without num_classes": lambda: torch.nn.functional.one_hot(ROW),
    "torch.tensor_split": lambda: torch.tensor_split(ROW, ONE)[0],
    "Tensor.item": lambda: 1 in ROW,
}
# No read, though each lies near one.
NEAR = {
    "where": lambda: torch.where(ROW > 1, ROW, 0),
    "index": lambda: ROW[ROW - 1],
    "fill": lambda: ROW.clone().index_put_((ROW > 1,), ONE),
    "repeat": lambda: torch.repeat_interleave(ROW, 2),
    "sized": lambda: torch.repeat_interleave(ROW, ROW, output_size=3),
    "one_hot": lambda: torch.nn.functional.one_hot(ROW, 4),
    "to": lambda: ROW.to(ONE.device, torch.float32),
    "split": lambda: torch.tensor_split(ROW, 2)[0],
    "iterate": lambda: sum(iter(ROW)),
}


def test_every_way_and_operation_is_tried():
    assert tuple(WAYS) == READS and set(OPERATIONS.values()) <= set(OPERATED)


@pytest.mark.parametrize("name", WAYS)
def test_a_read_is_seen_by_its_name_and_goes_on(name):
    before = {read: getattr(torch.Tensor, read) for read in READS}
    with SyncDetector() as watch:
        inside = WAYS[name]()
    assert watch.seen == f"Tensor.{name}"
    assert np.array_equal(np.asarray(inside), np.asarray(WAYS[name]()))
    assert {read: getattr(torch.Tensor, read) for read in READS} == before


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", OPERATED)
def test_an_operation_that_reads_is_seen(name, inference):
    """In inference mode composite operations are dispatched whole, else as their parts."""
    with torch.inference_mode(inference):
        with SyncDetector() as watch:
            inside = OPERATED[name]()
        assert watch.seen == name if inference else watch.seen is not None
        assert np.array_equal(np.asarray(inside), np.asarray(OPERATED[name]()))


@pytest.mark.parametrize("name", NEAR)
def test_what_is_near_a_read_is_none(name):
    with torch.inference_mode():
        with SyncDetector() as watch:
            NEAR[name]()
        assert watch.seen is None


@pytest.mark.parametrize("copy", [torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default])
def test_a_copy_is_a_read_where_it_leaves_the_device(copy):
    there = torch.empty(2, device="meta")
    assert read_of(copy, (ROW, there), {}, ROW) == "a copy to the CPU"
    assert read_of(copy, (ROW, ROW), {}, ROW) is None and read_of(copy, (there, ROW), {}, there) is None


def test_what_stays_on_the_device_is_no_read():
    with SyncDetector() as watch:
        total = (ROW + ONE).sum() * torch.where(ROW > 1, ROW, 0).max()
    assert watch.seen is None and total == 18


def test_the_first_read_is_reported_and_watches_within_each_other_end_one_by_one():
    with SyncDetector() as outer:
        with SyncDetector() as inner:
            ONE.item()
        ROW.tolist()
    assert (outer.seen, inner.seen) == ("Tensor.item", "Tensor.item")
    ROW.tolist()
    with pytest.raises(ZeroDivisionError), SyncDetector():
        _ = 1 / 0
    assert not {"tolist", "item"} & vars(torch.Tensor).keys()


@pytest.mark.nightly
def test_a_watch_does_not_import_the_compiler_of_torch():
    out = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True).stdout
    assert out == "False\n"
