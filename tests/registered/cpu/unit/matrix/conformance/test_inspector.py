"""Writes by a drafter into inputs, results and the host are detected in every hook."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.spec.drafter import VerifyResult
from specmatrix.engine.spec.guard import read
from specmatrix.matrix.conformance.inspector import (
    HOST_READS,
    PROCESS_STATE,
    InspectedDrafter,
    SyncDetector,
    read_of,
    restored_process_state,
)
from tests.support.misbehaving_drafter import READERS, TRAITS, WRITERS, Pretender

SUBJECT = "the drafter of PRETENDER"


def batch_of(width: int) -> StepBatch:
    relay = Relay(4, (DraftStateSpec("score", (3,), torch.float32),), torch.device("cpu"))
    relay.last += 3
    relay.length += 3
    rows, root = torch.tensor([1, 2]), torch.tensor([[7], [8]])
    slots = torch.arange(40).view(2, 20)
    return StepBatch(rows, torch.tensor([5, 6]), root, width, 20, slots, torch.tensor([3, 3]), relay=relay)


def inspected(drafter: type[Pretender], **traits: object) -> InspectedDrafter:
    context: Any = SimpleNamespace(
        traits=replace(TRAITS, **traits), target=SimpleNamespace(vocab_size=50), resolved=SimpleNamespace(device="cpu")
    )
    return InspectedDrafter(drafter(context))


@torch.inference_mode()
def run(drafter: InspectedDrafter) -> tuple[str, ...]:
    """A prefill step and a round, as the engine runs them; the violations."""
    tokens, two = torch.arange(6).view(2, 3), torch.tensor([1, 2])
    drafter.prime(batch_of(3), tokens, None, two, torch.tensor([-1, 4]))
    batch = batch_of(4)
    assert batch.relay is not None
    tree = drafter.propose(batch, batch.relay)
    drafter.absorb(batch_of(4), VerifyResult(tree.depths[:, :3].clone(), two, tree.tokens[:, :3].clone()), None)
    return drafter.violations


def test_an_honest_drafter_has_no_violation_and_keeps_its_attributes():
    drafter = inspected(Pretender)
    assert run(drafter) == () and drafter.nodes == 4 and drafter.traits.name == "PRETENDER"


@pytest.mark.parametrize(("name", "reader"), READERS.items(), ids=READERS)
def test_a_host_read_is_reported_unless_it_is_declared(name, reader):
    text = f"{SUBJECT} read a tensor on the host ({name}) in propose without the trait reads_host"
    assert run(inspected(reader)) == (text,)
    assert run(inspected(reader, reads_host=True, max_lag=0)) == ()


@pytest.mark.parametrize(("writer", "written"), WRITERS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_write_into_an_input_is_reported(writer, written):
    hook, *names = written
    assert run(inspected(writer)) == tuple(f"{SUBJECT} wrote into {name} in {hook}" for name in names)


class Raises(Pretender):
    def propose(self, batch, relay):
        batch.root.zero_()
        raise ValueError("no")


class Refills(Pretender):
    def propose(self, batch, relay):
        self.tree = super().propose(batch, relay)
        return self.tree

    def absorb(self, batch, verdict, aux):
        self.tree.tokens.zero_()
        raise ValueError("no")


@pytest.mark.parametrize(
    ("kind", "violations"), [(Raises, (f"{SUBJECT} wrote into batch.root in propose",)), (Refills, ())]
)
def test_a_write_into_an_input_before_an_exception_is_reported(kind, violations):
    drafter = inspected(kind)
    with pytest.raises(ValueError, match="no"):
        run(drafter)
    assert drafter.violations == violations


class Widens(Pretender):
    def absorb(self, batch, verdict, aux):
        verdict.tokens.data = verdict.tokens.float()
        return super().absorb(batch, verdict, aux)


class Reuses(Pretender):
    score = torch.zeros(2, 3)

    def absorb(self, batch, verdict, aux):
        return {"score": self.score.add_(1)}


def test_a_different_dtype_is_a_write_and_a_tensor_that_a_hook_fills_anew_is_none():
    assert run(inspected(Widens)) == (f"{SUBJECT} wrote into verdict.tokens in absorb",)
    drafter = inspected(Reuses)
    assert run(drafter) == run(drafter) == ()


class ChangesLater(Pretender):
    """A thread keeps writing to a hook's result; here it ends before the next hook runs."""

    def change(self, result, *tensors: torch.Tensor):
        self.thread = Thread(target=lambda: [tensor.add_(1) for tensor in tensors])
        return result

    def propose(self, batch, relay):
        tree = super().propose(batch, relay)
        return self.change(tree, tree.tokens, tree.parents)


@pytest.mark.parametrize("reused", [False, True])
def test_a_returned_tensor_that_a_thread_changes_before_the_next_hook_is_reported(reused):
    drafter, batch = inspected(ChangesLater), batch_of(4)
    assert batch.relay is not None
    drafter.propose(batch, batch.relay)
    assert drafter.violations == ()
    drafter.thread.start()
    drafter.thread.join()
    if reused:
        drafter.prime(batch_of(3), torch.arange(6).view(2, 3), None, torch.tensor([1, 2]), torch.tensor([-1, 4]))
    late = "after propose had returned it"
    assert drafter.violations == (f"{SUBJECT} changed 'tokens' {late}", f"{SUBJECT} changed 'parents' {late}")


WATCHED = """
import sys
import torch
from specmatrix.matrix.conformance.inspector import SyncDetector
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
    assert tuple(WAYS) == HOST_READS.methods and set(HOST_READS.operations.values()) <= set(OPERATED)


@pytest.mark.parametrize("name", WAYS)
def test_a_read_is_seen_by_its_name_and_goes_on(name):
    before = {read: getattr(torch.Tensor, read) for read in HOST_READS.methods}
    with SyncDetector() as watch:
        inside = WAYS[name]()
    assert watch.seen == f"Tensor.{name}"
    assert np.array_equal(np.asarray(inside), np.asarray(WAYS[name]()))
    assert {read: getattr(torch.Tensor, read) for read in HOST_READS.methods} == before


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


CHANGES = {
    "the default dtype from torch.float32 to torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "the default device from cpu to meta": lambda: torch.set_default_device("meta"),
    "the number of threads from 1 to 2": lambda: torch.set_num_threads(2),
    "the deterministic debug mode from 0 to 2": lambda: torch.use_deterministic_algorithms(True),
    "the float32 matmul precision from highest to medium": lambda: torch.set_float32_matmul_precision("medium"),
    "the working directory from {here} to /": lambda: os.chdir("/"),
    "torch's random number generator": lambda: torch.rand(1, device="cpu"),
    "numpy's random number generator": np.random.rand,
    "Python's random number generator": random.random,
}


def test_every_state_is_changed():
    assert [change.partition(" from ")[0] for change in CHANGES] == [setting.name for setting in PROCESS_STATE]


@pytest.mark.parametrize(("change", "act"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_reported_and_restored(monkeypatch, tmp_path, change, act):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    before = read(PROCESS_STATE)
    with restored_process_state() as changes:
        act()
    assert changes == [f"changed {change.format(here=tmp_path)}"]
    assert read(PROCESS_STATE) == before


def test_several_changes_are_one_sentence_and_files_that_are_left_open_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_process_state() as changes:
        os.chdir("/")
        random.random()
    assert changes == [f"changed the working directory from {tmp_path} to / and Python's random number generator"]
    with restored_process_state() as changes:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    assert changes == ["left 20 more files open than before"]
    for fd in opened:
        os.close(fd)


def test_no_change_reports_nothing_and_an_error_propagates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_process_state() as changes:
        os.close(os.open(os.devnull, os.O_RDONLY))
    assert changes == []
    with pytest.raises(ZeroDivisionError), restored_process_state():
        os.chdir("/")
        _ = 1 / 0
    assert Path.cwd() == tmp_path
