"""Windowed layers: the mask against brute force over positions, slots against the table, stamps against writes."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.core.schedule.step import PlanRow, StepPlan
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import StepBatch, causal_bias, tree_bias
from specmatrix.engine.device.pool import KVLayout, KVPool
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.engine.device.window_kv import WindowMemory, key_positions, split, windowed_bias
from specmatrix.kernels.tree_layout.cases import random_parents
from specmatrix.kernels.tree_layout.reference import tree_layout

pytestmark = pytest.mark.register(est_seconds=4, tier="cpu", stage="pr")

CPU = torch.device("cpu")
SIZE, WINDOW = 2, 3
WINDOWS = (None, WINDOW, None, WINDOW, WINDOW)


def memory(stamps: bool = True) -> WindowMemory:
    pool = KVPool(KVLayout(3, 2, 4), 10, SIZE, torch.float32, CPU, stamps=stamps)
    return WindowMemory(WINDOWS, pool, SlotTable(6, 20, SIZE, CPU, stamps))


def world(rows: tuple[PlanRow, ...], starts: dict[int, int], prefill: bool = False):
    """A step over full pages 1.. in order, and the window memory with the plan's pages entered."""
    relay, table, side = Relay(6, (), CPU), SlotTable(6, 20, SIZE, CPU, True), memory()
    for row, start in starts.items():
        relay.publish(torch.tensor([row]), torch.tensor([start]), torch.tensor([[1]]))
    table.extend(rows)
    side.extend(rows)
    batch = StepBatch.of(StepPlan(prefill, rows, True, -1), relay, table)
    return batch, side


def round_rows():
    # Row 2 holds positions 0..5, its first window page (0, 1) is gone; row 1 holds 0..2.
    return (
        PlanRow(9, 9, 2, 2, 8, (5, 2, 7, 1), 0, 9, window_pages=(4, 6, 3), window_first=1, writers=((0, 9),)),
        PlanRow(8, 8, 1, 2, 5, (3, 6, 4), 0, 8, window_pages=(1, 2, 5), window_first=0, writers=((0, 8),)),
    )


def test_layers_split_by_what_they_see():
    full, windowed = split(KVLayout(5, 2, 4), WINDOWS)
    assert (full.layers, windowed.layers, windowed.head_dim) == (2, 3, 4)
    assert memory().routes == ((False, 0), (True, 0), (False, 1), (True, 1), (True, 2))
    assert memory().tokens == WINDOW


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
    keys = key_positions(batch, positions)
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
    batch, side = world(round_rows(), {2: 6, 1: 3})
    step = side.step(batch)
    assert step.write.tolist() == [[6, 7], [5, 10]]  # row 2: page 3 at positions 6, 7; row 1: page 2 offset 1, page 5
    assert step.read[0, 2:8].tolist() == [8, 9, 12, 13, 6, 7]
    assert batch.write.tolist() == [[2, 3], [13, 8]]


def test_padded_positions_write_to_the_padding_slot():
    rows = (
        PlanRow(9, 9, 2, 4, 4, (5, 2), 0, 9, 0, (1, 2, 3, 4), window_pages=(4, 6), writers=((0, 9),)),
        PlanRow(8, 8, 1, 1, 1, (3,), 0, 8, 0, (5,), window_pages=(1,), writers=((0, 8),)),
    )
    batch, side = world(rows, {}, prefill=True)
    assert side.step(batch).write.tolist() == [[8, 9, 12, 13], [2, 0, 0, 0]]


def test_each_layer_stores_in_its_own_pool():
    batch, side = world(round_rows(), {2: 6, 1: 3})
    step = side.step(batch)
    full = KVPool(KVLayout(2, 2, 4), 10, SIZE, torch.float32, CPU)
    positions, write, bias = batch.causal(2, torch.float32)
    attend = side.beside(StepAttention(full, write, batch.slots, bias), batch, step, bias, positions)
    generator = torch.Generator().manual_seed(0)
    for layer, (windowed, index) in enumerate(side.routes):
        kv = torch.randn(4, 16, generator=generator)
        attend(layer, torch.randn(2, 2, 4, 4, generator=generator), kv)
        pool, slots = (side.pool, step.write) if windowed else (full, write)
        assert torch.equal(pool.rows[index][slots.flatten()], kv)


def test_compaction_moves_window_slots():
    batch, side = world(round_rows(), {2: 6, 1: 3})
    step = side.step(batch)
    side.pool.data.copy_(torch.arange(side.pool.data.numel()).view(side.pool.data.shape))
    before = side.pool.data.clone()
    side.move(step, torch.tensor([[1], [0]]))
    assert torch.equal(side.pool.data[:, 6], before[:, 7])
    assert torch.equal(side.pool.data[:, 5], before[:, 5])


def test_stamps_in_the_window_are_compared_and_those_below_are_not():
    batch, side = world(round_rows(), {2: 6, 1: 3})
    step = side.step(batch)
    expected = side.table.expected(batch.rows, batch.reach)
    for b, (start, first) in enumerate([(6, 4), (3, 1)]):
        for p in range(first, start):
            side.pool.stamps[step.read[b, p]] = expected[b, p]
    generations = torch.tensor([9, 8])
    assert [int(n) for n in side.stamp(batch, step, generations, batch.positions)] == [2 + 2, 0]
    side.pool.stamps[step.read[0, 5]] = 1
    side.pool.stamps[step.read[0, 3]] = 1  # position 3 is out of sight of a query at 6
    assert [int(n) for n in side.stamp(batch, step, generations, batch.positions)] == [4, 1]
    written = side.pool.stamps[step.write]
    assert torch.equal(written, (generations[:, None] << 32) | batch.positions)
