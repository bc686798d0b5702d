"""The relay keeps what each row was last given, and nothing of its neighbours."""

from __future__ import annotations

import pytest
import torch

from engine.device.relay import DraftState, Relay

pytestmark = pytest.mark.register(est_seconds=2, tier="cpu", stage="pr")

CPU = torch.device("cpu")


def relay_of(topk=2, carry=3):
    return Relay(5, topk, carry, torch.float32, CPU)


def test_lengths_and_roots_come_back_in_the_order_asked():
    relay = relay_of()
    relay.publish(torch.tensor([3, 1]), torch.tensor([10, 20]), torch.tensor([[7], [8]]))
    relay.publish(torch.tensor([2]), torch.tensor([30]), torch.tensor([[9]]))
    lengths, roots = relay.lengths_and_roots(torch.tensor([1, 2, 3]))
    assert lengths.tolist() == [20, 30, 10] and roots.tolist() == [[8], [9], [7]]
    assert relay.head[[0, 4]].tolist() == [[0, 0], [0, 0]]


def test_what_was_read_does_not_change_when_the_row_does():
    relay = relay_of()
    rows = torch.tensor([1])
    relay.publish(rows, torch.tensor([4]), torch.tensor([[5]]))
    lengths, roots = relay.lengths_and_roots(rows)
    relay.publish(rows, torch.tensor([6]), torch.tensor([[7]]))
    assert (lengths.item(), roots.item()) == (4, 5)


def test_a_drafters_state_comes_back_by_row():
    relay = relay_of()
    state = DraftState(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.5, 0.25], [0.75, 0.125]]), torch.rand(2, 3))
    relay.stash(torch.tensor([4, 2]), state)
    again = relay.state(torch.tensor([2, 4]))
    for kept, given in zip(again, state, strict=True):
        assert torch.equal(kept, given.flip(0))
    assert not relay.ids[[0, 1, 3]].any()


def test_nothing_is_carried_for_a_drafter_that_carries_nothing():
    state = relay_of(topk=0, carry=0).state(torch.tensor([1, 2]))
    assert state.ids.shape == state.hidden.shape == (2, 0)


def test_sampling_parameters_of_the_batch():
    relay = relay_of()
    relay.sampling.temperature[2] = 0.5
    relay.sampling.seed[2] = 2**62
    rows = relay.sampling_of(torch.tensor([2, 1]))
    assert rows.temperature.tolist() == [0.5, 0.0] and rows.seed.tolist() == [2**62, 0]
    assert rows.top_p.tolist() == [1.0, 1.0] and rows.top_k.tolist() == [0, 0]
    assert rows.temperature.dtype == rows.top_p.dtype == torch.float32
    assert rows.seed.dtype == rows.top_k.dtype == torch.int64
