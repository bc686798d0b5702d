"""Windowed layers: the mask against brute force over positions, slots against the table, stamps against writes."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.core.schedule.step import PlanRow, StepPlan
from specmatrix.engine.device import kv_groups
from specmatrix.engine.device.batch import StepBatch, VerifyResult, causal_bias, tree_bias
from specmatrix.engine.device.kv_groups import KVGroup, KVGroups, WindowGroup, routes_of, split, windowed_bias
from specmatrix.engine.device.pool import KVLayout, KVPool
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.kernels.tree_layout.cases import random_parents
from specmatrix.kernels.tree_layout.reference import tree_layout
from tests.support.plan_rows import plan_row

CPU = torch.device("cpu")
SIZE, WINDOW = 2, 3
WINDOWS = (None, WINDOW, None, WINDOW, WINDOW)


def groups(kind: type[KVGroups] = KVGroups) -> KVGroups:
    """The groups of five layers, each with its own pool and table."""
    routes = routes_of(WINDOWS)
    full, near = (
        (KVPool(layout, 10, SIZE, torch.float32, CPU, stamps=True), SlotTable(6, 20, SIZE, CPU, stamps=True))
        for layout in split(KVLayout(5, 2, 4), routes)
    )
    return kind([KVGroup(*full), WindowGroup(*near, WINDOW)], routes)


def world(rows: tuple[PlanRow, ...], starts: dict[int, int], prefill: bool = False, kind: type[KVGroups] = KVGroups):
    """A step, and the groups with the plan's pages written to their tables."""
    relay, kv = Relay(6, (), CPU), groups(kind)
    for row, start in starts.items():
        relay.publish(torch.tensor([row]), torch.tensor([start]), torch.tensor([[1]]))
    kv.extend(rows)
    return StepBatch.of(StepPlan(prefill=prefill, rows=rows, greedy=True), relay, kv.full.table), kv


def round_rows():
    # Row 2 holds positions 0..5, its first window page (0, 1) is gone; row 1 holds 0..2.
    return (
        plan_row(9, 2, 2, 8, (0, (5, 2, 7, 1)), (1, (4, 6, 3)), writers=((0, 9),)),
        plan_row(8, 1, 2, 5, (0, (3, 6, 4)), (0, (1, 2, 5)), writers=((0, 8),)),
    )


def test_layers_are_split_by_their_attention():
    full, windowed = (group.pool.layout for group in groups().groups)
    assert (full.layers, windowed.layers, windowed.head_dim) == (2, 3, 4)
    assert groups().routes == ((0, 0), (1, 0), (0, 1), (1, 1), (1, 2))
    assert [group.window for group in groups().groups] == [None, WINDOW]


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_causal_mask_with_a_window(window):
    positions = torch.tensor([[3, 4, 5], [0, 1, 2]])
    keys = torch.arange(7).expand(2, -1)
    bias = windowed_bias(causal_bias(positions, 7, torch.float32), positions, keys, window)
    for b in range(2):
        for w in range(3):
            q = int(positions[b, w])
            assert (bias[b, 0, w] == 0).tolist() == [q - window < key <= q for key in range(7)]


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_tree_mask_measures_by_depth_not_by_slot(window):
    parents = random_parents(2, 6, torch.Generator().manual_seed(3))
    depths, ancestors = tree_layout(parents)
    start = torch.tensor([4, 2])
    batch = StepBatch(
        torch.tensor([1, 2]), start, torch.zeros(2, 1), 6, 10, torch.zeros(2, 10, dtype=torch.int64), None
    )
    positions = start[:, None] + depths
    keys = kv_groups.key_positions(batch, positions)
    bias = windowed_bias(tree_bias(start, ancestors, 10, torch.float32), positions, keys, window)
    for b in range(2):
        for n in range(6):
            here = int(positions[b, n])
            for key in range(10):
                node = key - int(start[b])
                at = key if not 0 <= node < 6 else int(positions[b, node])
                visible = node < 0 or (node < 6 and bool(ancestors[b, n, node]))
                assert bool(bias[b, 0, n, key] == 0) == (visible and at > here - window)


def test_slots_come_from_the_window_table():
    batch, kv = world(round_rows(), {2: 6, 1: 3})
    step = kv.groups[1].slots(batch)
    assert step.write.tolist() == [[6, 7], [5, 10]]  # row 2: page 3 at positions 6, 7; row 1: page 2 offset 1, page 5
    assert step.read[0, 2:8].tolist() == [8, 9, 12, 13, 6, 7]
    assert batch.write.tolist() == [[2, 3], [13, 8]]
    assert not kv.full.attention(batch, step, torch.empty(0), batch.positions).causal  # a round may be a tree


def test_each_layer_stores_in_its_own_pool():
    batch, kv = world(round_rows(), {2: 6, 1: 3})
    positions, _, bias = batch.causal(2, torch.float32)
    step = kv.begin(batch, bias, positions)
    generator = torch.Generator().manual_seed(0)
    for layer, (group, index) in enumerate(kv.routes):
        given = torch.randn(4, 16, generator=generator)
        step.attention(layer, torch.randn(2, 2, 4, 4, generator=generator), given)
        pool, slots = kv.groups[group].pool, step.slots[group].write
        assert torch.equal(pool.rows[index][slots.flatten()], given)
    assert step.slots[0].write is batch.write and step.stamps is None


def test_compaction_moves_the_slots_of_every_group():
    batch, kv = world(round_rows(), {2: 6, 1: 3})
    positions, _, bias = batch.causal(2, torch.float32)
    pools = [group.pool.data for group in kv.groups]
    for data in pools:
        data.copy_(torch.arange(data.numel()).view(data.shape))
    before = [data.clone() for data in pools]
    path, moved = torch.tensor([[1], [0]]), torch.tensor([True, False])
    kv.commit(kv.begin(batch, bias, positions), VerifyResult(path, torch.ones(2).long(), path, moved))
    for data, old, (to, kept) in zip(pools, before, [(2, 13), (6, 5)], strict=True):
        assert torch.equal(data[:, to], old[:, to + 1]) and torch.equal(data[:, kept], old[:, kept])


def test_the_commit_of_a_chain_moves_nothing():
    batch, kv = world(round_rows(), {2: 6, 1: 3})
    positions, _, bias = batch.causal(2, torch.float32)
    step, pools = kv.begin(batch, bias, positions), [group.pool.data for group in kv.groups]
    for data in pools:
        data.copy_(torch.arange(data.numel()).view(data.shape))
    before = [data.clone() for data in pools]
    kv.commit(step, VerifyResult(positions, torch.ones(2).long(), positions))
    assert all(map(torch.equal, pools, before))


def test_stamps_in_the_window_are_compared_and_those_below_are_not():
    batch, kv = world(round_rows(), {2: 6, 1: 3}, kind=kv_groups.StampedGroups)
    positions, _, bias = batch.causal(2, torch.float32)
    full, near = (group.pool.stamps for group in kv.groups)
    expected = kv.full.table.expected(batch.rows, batch.padded_kv_len)
    read, write, *_ = kv.groups[1].slots(batch)
    for b, (start, first) in enumerate([(6, 4), (3, 1)]):
        full[batch.slots[b, :start]] = expected[b, :start]
        near[read[b, first:start]] = expected[b, first:start]
    assert kv.begin(batch, bias, positions).stamps.tolist() == [6 + 3 + 2 + 2, 0]
    near[read[0, 5]] = 1
    near[read[0, 3]] = 1  # position 3 is out of sight of a query at 6
    assert kv.begin(batch, bias, positions).stamps.tolist() == [13, 1]
    full[batch.slots[1, 0]] = 1
    assert kv.begin(batch, bias, positions).stamps.tolist() == [13, 2]
    written = (torch.tensor([9, 8])[:, None] << 32) | positions
    assert torch.equal(near[write], written) and torch.equal(full[batch.write], written)


def test_padded_positions_write_to_the_padding_slot():
    rows = (
        plan_row(9, 2, 4, 4, (0, (5, 2)), (0, (4, 6)), start=0, tokens=(1, 2, 3, 4), writers=((0, 9),)),
        plan_row(8, 1, 1, 1, (0, (3,)), (0, (1,)), start=0, tokens=(5,), writers=((0, 8),)),
    )
    batch, kv = world(rows, {}, prefill=True)
    assert kv.groups[1].slots(batch).write.tolist() == [[8, 9, 12, 13], [2, 0, 0, 0]]
    assert kv.full.attention(batch, kv.full.slots(batch), torch.empty(0), batch.positions).causal
