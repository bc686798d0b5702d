"""The relay keeps each row's latest values, and nothing of its neighbours."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.relay import DraftStateSpec, Relay

CPU = torch.device("cpu")


CARRIES = (
    DraftStateSpec("ids", (2,), torch.int64),
    DraftStateSpec("hidden", (3, 4), torch.float16),
    DraftStateSpec("age", (), torch.int64),
)


def relay_of(carries=CARRIES):
    return Relay(5, carries, CPU)


def test_lengths_and_roots_are_returned_in_the_requested_order():
    relay = relay_of()
    relay.publish(torch.tensor([3, 1]), torch.tensor([10, 20]), torch.tensor([[7], [8]]))
    relay.publish(torch.tensor([2]), torch.tensor([30]), torch.tensor([[9]]))
    lengths, roots = relay.lengths_and_roots(torch.tensor([1, 2, 3]))
    assert lengths.tolist() == [20, 30, 10] and roots.tolist() == [[8], [9], [7]]
    assert relay.length[[0, 4]].tolist() == [0, 0] and relay.last[[0, 4]].tolist() == [[0], [0]]


def test_a_row_that_carries_nothing_holds_zeros_or_distinct_ids():
    carries = (DraftStateSpec("ids", (3,), torch.int64, distinct=True), DraftStateSpec("age", (), torch.int64))
    relay, rows = relay_of(carries), torch.tensor([2, 4])
    relay.stash(rows, {"ids": torch.full((2, 3), 9), "age": torch.tensor([8, 9])})
    assert relay.carried["ids"].tolist() == [[0, 1, 2], [0, 1, 2], [9, 9, 9], [0, 1, 2], [9, 9, 9]]
    relay.forget(rows[1:])
    assert relay.carried["ids"][[2, 4]].tolist() == [[9, 9, 9], [0, 1, 2]] and relay.carried["age"].tolist()[4] == 0


def test_the_same_rows_come_back_at_once_and_are_there_for_others():
    relay = relay_of()
    rows = torch.tensor([3, 1])
    for length in (10, 20):
        relay.publish(rows, torch.tensor([length, 7]), torch.tensor([[length + 1], [8]]))
        assert [part.tolist() for part in relay.lengths_and_roots(rows)] == [[length, 7], [[length + 1], [8]]]
    relay.publish(torch.tensor([2]), torch.tensor([30]), torch.tensor([[9]]))
    lengths, roots = relay.lengths_and_roots(torch.tensor([1, 2, 3]))
    assert lengths.tolist() == [7, 30, 20] and roots.tolist() == [[8], [9], [21]]
    assert relay.lengths_and_roots(rows)[0].tolist() == [20, 7]


def test_a_drafters_state_comes_back_by_row():
    relay = relay_of()
    state = {"ids": torch.tensor([[1, 2], [3, 4]]), "hidden": torch.rand(2, 3, 4).half(), "age": torch.tensor([8, 9])}
    relay.stash(torch.tensor([4, 2]), state)
    again = relay.state(torch.tensor([2, 4]))
    assert list(again) == ["ids", "hidden", "age"]
    for carry in CARRIES:
        assert torch.equal(again[carry.name], state[carry.name].flip(0))
        assert (again[carry.name].shape, again[carry.name].dtype) == ((2, *carry.shape), carry.dtype)
        assert not relay.carried[carry.name][[0, 1, 3]].any()


def test_a_state_that_lacks_a_carry_is_a_bug():
    with pytest.raises(KeyError, match="hidden"):
        relay_of().stash(torch.tensor([1]), {"ids": torch.tensor([[1, 2]])})


def test_sampling_parameters_of_the_batch():
    relay = relay_of()
    relay.sampling.temperature[2] = 0.5
    relay.sampling.seed[2] = 2**62
    rows = relay.sampling_of(torch.tensor([2, 1]))
    assert rows.temperature.tolist() == [0.5, 0.0] and rows.seed.tolist() == [2**62, 0]
    assert rows.top_p.tolist() == [1.0, 1.0] and rows.top_k.tolist() == [0, 0]
    assert rows.temperature.dtype == rows.top_p.dtype == torch.float32
    assert rows.seed.dtype == rows.top_k.dtype == torch.int64
