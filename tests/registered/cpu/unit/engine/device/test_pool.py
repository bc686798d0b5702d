"""The pool: layout, views and moves."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.pool import KVLayout, KVPool


@pytest.fixture
def pool():
    return KVPool(KVLayout(2, 2, 5), 4, 3, torch.float32, "cpu", stamps=True)


def test_slots_are_pages_times_size_and_start_as_zeros(pool):
    assert pool.data.shape == (2, 12, 2, 2, 5)
    assert not pool.data.any()
    assert pool.stamps.tolist() == [0] * 12
    assert KVPool(KVLayout(1, 1, 2), 2, 1, torch.float32, "cpu").stamps is None


def test_spare_slots_follow_all_pages():
    pool = KVPool(KVLayout(2, 2, 5), 4, 3, torch.float32, "cpu", stamps=True, spare=2)
    assert pool.spare.tolist() == [12, 13] and pool.data.shape[1] == 14 and len(pool.stamps) == 12
    pool.store(1, pool.spare, torch.ones(2, 20))
    assert pool.data[1, 12:].all() and not pool.data[1, :12].any()
    assert pool.heads[1].shape == (14 * 4, 5)
    assert KVPool(KVLayout(1, 1, 2), 2, 1, torch.float32, "cpu").spare.tolist() == []


def test_store_writes_keys_then_values_of_one_layer(pool):
    keys, values = torch.randn(3, 2, 5), torch.randn(3, 2, 5)
    slots = torch.tensor([11, 4, 7])
    pool.store(1, slots, torch.cat((keys.flatten(1), values.flatten(1)), 1))
    assert torch.equal(pool.data[1, slots, 0], keys)
    assert torch.equal(pool.data[1, slots, 1], values)
    assert not pool.data[0].any()
    assert pool.data[1].any(dim=(1, 2, 3)).nonzero().flatten().tolist() == [4, 7, 11]


def test_move_reads_before_it_writes_and_takes_stamps_along(pool):
    pool.data.copy_(torch.randn_like(pool.data))
    pool.stamps.copy_(torch.arange(100, 112))
    before = pool.data.clone()
    pool.move(torch.tensor([5, 6, 7]), torch.tensor([4, 5, 6]))
    assert torch.equal(pool.data[:, 4:7], before[:, 5:8])
    assert torch.equal(pool.data[:, 7:], before[:, 7:])
    assert pool.stamps[3:8].tolist() == [103, 105, 106, 107, 107]


def test_a_latent_slot_has_one_plane():
    layout = KVLayout(2, 1, 6, value_dim=4, scale=0.3)
    pool = KVPool(layout, 4, 3, torch.float32, "cpu")
    assert pool.data.shape == (2, 12, 1, 1, 6)
    assert (layout.planes, layout.factor) == (1, 0.3)
    pool.store(1, torch.tensor([7]), torch.arange(6.0)[None])
    assert pool.heads[1][7].tolist() == [0, 1, 2, 3, 4, 5]
    pool.move(torch.tensor([7]), torch.tensor([5]))
    assert pool.rows[1][5].tolist() == [0, 1, 2, 3, 4, 5]
    assert KVLayout(1, 2, 16).factor == 0.25


def test_a_pool_without_layers_has_no_slots():
    """All layers of a target may be windowed; the other pool is empty then."""
    pool = KVPool(KVLayout(0, 2, 5), 4, 3, torch.float32, "cpu", stamps=True)
    assert (len(pool.rows), len(pool.heads), len(pool.stamps)) == (0, 0, 12)
    pool.move(torch.tensor([5]), torch.tensor([4]))
