"""Writes by a drafter into inputs, results and the host are detected in every hook."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.spec.drafter import VerifyResult
from specmatrix.matrix.conformance.inspector import InspectedDrafter
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
        traits=replace(TRAITS, **traits),
        target=SimpleNamespace(vocab_size=50),
        resolved=SimpleNamespace(device="cpu"),
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
