"""The tensors of a step: masks against a brute force over positions, slots against the table."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.device.batch import (
    MAX_TRIANGLE,
    HostTokens,
    StepBatch,
    causal_bias,
    prefix_bias,
    round_bias,
    tree_bias,
)
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.kernels.tree_layout.cases import random_parents
from specmatrix.kernels.tree_layout.reference import tree_layout
from tests.support.plan_rows import plan_row

CPU = torch.device("cpu")


def seen(bias):
    """The positions that a bias lets a query attend to; the rest must be exactly -inf."""
    assert bool(((bias == 0) | (bias == float("-inf"))).all())
    return bias == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_bias(dtype):
    positions = torch.tensor([[3, 4, 5], [0, 1, 2]])
    bias = causal_bias(positions, 7, dtype)
    assert bias.shape == (2, 1, 3, 7) and bias.dtype == dtype
    for b in range(2):
        for w in range(3):
            assert seen(bias)[b, 0, w].tolist() == [key <= positions[b, w] for key in range(7)]


@pytest.mark.parametrize("padded_kv_len", [3, 16, 48, MAX_TRIANGLE["cpu"], MAX_TRIANGLE["cpu"] + 16])
@pytest.mark.parametrize("width", [1, 3])
def test_the_mask_of_a_round_is_the_causal_one(padded_kv_len, width):
    positions = torch.tensor([[padded_kv_len - width], [0], [padded_kv_len // 2 - width // 2]]) + torch.arange(width)
    for dtype in (torch.float32, torch.bfloat16):
        bias = round_bias(positions, padded_kv_len, dtype)
        assert bias.dtype == dtype and torch.equal(bias, causal_bias(positions, padded_kv_len, dtype))


def test_prefix_bias():
    bias = prefix_bias(torch.tensor([3, 1, 5]), 5, torch.float32)
    assert bias.shape == (3, 1, 1, 5)
    assert seen(bias)[:, 0, 0].tolist() == [[k < start for k in range(5)] for start in (3, 1, 5)]


@pytest.mark.parametrize(("nodes", "padded_kv_len"), [(1, 9), (4, 11), (7, 13)])
def test_tree_bias(nodes, padded_kv_len):
    parents = random_parents(3, nodes, torch.Generator().manual_seed(nodes))
    _, ancestors = tree_layout(parents)
    starts = [padded_kv_len - nodes, 2, 4]
    bias = tree_bias(torch.tensor(starts), ancestors, padded_kv_len, torch.float32)
    assert bias.shape == (3, 1, nodes, padded_kv_len)
    for b, start in enumerate(starts):
        for n in range(nodes):
            line = set()
            node = n
            while node >= 0:
                line.add(start + node)
                node = int(parents[b, node])
            expected = [key < start or key in line for key in range(padded_kv_len)]
            assert seen(bias)[b, 0, n].tolist() == expected


def world(page_size=3):
    """Rows 2 and 1 own scattered pages; the relay holds lengths that differ from any plan."""
    table = SlotTable(4, 12, page_size, CPU, stamps=False)
    table.extend(
        [plan_row(9, 2, 1, 1, (0, (5, 2, 7)), writers=((0, 9),)), plan_row(8, 1, 1, 1, (0, (3, 6)), writers=((0, 8),))]
    )
    relay = Relay(4, (), CPU)
    relay.publish(torch.tensor([2, 1]), torch.tensor([4, 2]), torch.tensor([[77], [66]]))
    return relay, table


def slot(pages, position, page_size=3):
    return pages[position // page_size] * page_size + position % page_size


def test_a_round_reads_lengths_and_roots_from_the_relay():
    relay, table = world()
    plan = StepPlan(prefill=False, rows=(plan_row(9, 2, 3, 8), plan_row(8, 1, 3, 5)), greedy=True)
    batch = StepBatch.of(plan, relay, table)
    assert batch.rows.tolist() == [2, 1] and batch.start.tolist() == [4, 2]
    assert batch.root.tolist() == [[77], [66]]
    assert (batch.width, batch.padded_kv_len, batch.lengths) == (3, 12, None)
    assert batch.slots.tolist() == [
        [*(slot((5, 2, 7), p) for p in range(9)), 0, 0, 0],
        [*(slot((3, 6), p) for p in range(6)), *[0] * 6],
    ]
    assert batch.write.tolist() == [[slot((5, 2, 7), p) for p in (4, 5, 6)], [slot((3, 6), p) for p in (2, 3, 4)]]


def test_host_tokens_come_row_by_row_in_rounds_only():
    relay, table = world()
    rows = (plan_row(9, 2, 3, 8, tokens=(1, 2), prompt=1), plan_row(8, 1, 3, 5, tokens=(3,)))
    assert StepBatch.of(StepPlan(prefill=False, rows=rows, greedy=True), relay, table).known == (
        HostTokens(9, (1, 2), 1, 3),
        HostTokens(8, (3,), 0, 3),
    )
    untold = (plan_row(9, 2, 3, 8), plan_row(8, 1, 3, 5))
    assert StepBatch.of(StepPlan(prefill=False, rows=untold, greedy=True), relay, table).known == ()
    prefill = (plan_row(9, 2, 4, 7, start=3, tokens=(1, 2, 3, 4)),)
    assert StepBatch.of(StepPlan(prefill=True, rows=prefill, greedy=True), relay, table).known == ()


def test_a_prefill_reads_starts_from_the_plan_and_pads_into_slot_0():
    relay, table = world()
    rows = (plan_row(9, 2, 4, 7, start=3, tokens=(1, 2, 3, 4)), plan_row(8, 1, 2, 3, start=1, tokens=(5, 6)))
    batch = StepBatch.of(StepPlan(prefill=True, rows=rows, greedy=True), relay, table)
    assert batch.start.tolist() == [3, 1] and batch.lengths.tolist() == [4, 2]
    assert (batch.width, batch.padded_kv_len) == (4, 12)
    assert batch.write.tolist() == [
        [slot((5, 2, 7), p) for p in (3, 4, 5, 6)],
        [slot((3, 6), 1), slot((3, 6), 2), 0, 0],
    ]


def test_padding_has_no_position_past_the_reach():
    """The model has no position there."""
    relay, table = world()
    rows = (plan_row(9, 2, 9, 9, start=0, tokens=(1,) * 9), plan_row(8, 1, 2, 8, start=6, tokens=(5, 6)))
    batch = StepBatch.of(StepPlan(prefill=True, rows=rows, greedy=True), relay, table)
    assert batch.padded_kv_len == 12
    assert batch.positions.tolist() == [[*range(9)], [6, 7, 8, 9, 10, 11, 11, 11, 11]]
    assert batch.write[1].tolist() == [0] * 9


def test_a_round_knows_its_positions_slots_and_mask_as_consecutive_tokens():
    relay, table = world()
    plan = StepPlan(prefill=False, rows=(plan_row(9, 2, 3, 8), plan_row(8, 1, 3, 5)), greedy=True)
    batch = StepBatch.of(plan, relay, table)
    for width in (3, 2):
        positions, write, bias = batch.causal(width, torch.float64)
        assert positions.tolist() == [list(range(4, 4 + width)), list(range(2, 2 + width))]
        assert torch.equal(write, batch.write[:, :width])
        assert torch.equal(bias, causal_bias(positions, 12, torch.float64)) and bias.dtype is torch.float64
    assert batch.causal(3, torch.float64).bias is batch.causal(3, torch.float64).bias
    assert batch.causal(3, torch.float32).bias.dtype is torch.float32
