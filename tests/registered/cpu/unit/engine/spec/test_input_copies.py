"""Copies of a step's tensors: alike, apart from the engine's own, and compared with them."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Carry, Relay
from specmatrix.engine.spec.drafter import Verdict
from specmatrix.engine.spec.input_copies import BATCH, NAMES, InputCopies

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def batch_of(width: int) -> StepBatch:
    """Rows 1 and 2, of which a round has just published lengths and bonus tokens."""
    relay = Relay(4, (Carry("score", (), torch.float32),), torch.device("cpu"))
    rows = torch.tensor([1, 2])
    relay.publish(rows, torch.tensor([5, 6]), torch.tensor([[7], [8]]))
    start, root = relay.lengths_and_roots(rows)
    slots = torch.arange(40).view(2, 20)
    return StepBatch(rows, start, root, width, 20, slots, torch.tensor([3, 3]), relay=relay, generations=rows + 5)


def names(told: torch.Tensor) -> list[str]:
    return [name for bit, name in enumerate(NAMES) if int(told) >> bit & 1]


@pytest.mark.parametrize("width", [1, 3])
def test_the_copy_is_alike_and_shares_no_memory(width):
    batch = batch_of(width)
    copies = InputCopies(batch)
    for name in BATCH:
        own, copied = getattr(batch, name), getattr(copies.batch, name)
        assert torch.equal(own, copied)
        assert own.untyped_storage().data_ptr() != copied.untyped_storage().data_ptr()
    assert names(copies.written()) == []


@pytest.mark.parametrize("name", BATCH)
def test_a_write_is_told_and_stays_in_the_copy(name):
    batch = batch_of(3)
    before = getattr(batch, name).clone()
    copies = InputCopies(batch)
    getattr(copies.batch, name).add_(1)
    assert names(copies.written()) == [f"batch.{name}"]
    assert torch.equal(getattr(batch, name), before)


def test_the_relay_is_a_settled_copy_that_shares_what_is_carried():
    batch = batch_of(1)
    relay, copies = batch.relay, InputCopies(batch)
    own = copies.batch.relay
    assert own.length.tolist() == [0, 5, 6, 0] and own.last.flatten().tolist() == [0, 7, 8, 0]
    assert relay.length.tolist() == [0, 0, 0, 0]  # the engine's is not settled behind its back
    assert own.carried is relay.carried
    own.last.zero_()
    own.sampling.top_p.zero_()
    assert names(copies.written()) == ["relay.last", "relay.sampling.top_p"]
    assert relay.sampling.top_p.tolist() == [1, 1, 1, 1] and relay.lengths_and_roots(batch.rows)[1].tolist() == [
        [7],
        [8],
    ]


def test_another_shape_and_another_type_are_writes():
    copies = InputCopies(batch_of(3))
    verdict = copies.verdict(Verdict(torch.zeros(2, 3).long(), torch.ones(2).long(), torch.zeros(2, 3).long()))
    verdict.path.resize_(1, 3)
    verdict.tokens.data = verdict.tokens.float()
    assert names(copies.written()) == ["verdict.path", "verdict.tokens"]


def test_a_table_that_is_spread_out_is_lent_as_numbers_of_its_own():
    """Depths of a chain are one row of a table, shown for every request."""
    copied = InputCopies(batch_of(3)).copy("tokens", torch.arange(3).expand(2, -1))
    copied[0, 0] = 9
    assert copied.tolist() == [[9, 1, 2], [0, 1, 2]]
