"""The slot table: pages become slots, position by position."""

from __future__ import annotations

import pytest
import torch

import specmatrix.engine.device.slot_table
from specmatrix.engine.device.slot_table import SlotTable, stamp
from tests.support.plan_rows import plan_row

CPU = torch.device("cpu")


def row(at, pages, first, writers=()):
    return plan_row(at + 50, at, 1, 1, (first, pages), writers=writers)


@pytest.mark.parametrize("few", [0, 1, 3, 9])
@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_pages_become_slots_where_they_belong(page_size, few, monkeypatch):
    monkeypatch.setattr(specmatrix.engine.device.slot_table, "FEW", few)
    table = SlotTable(4, 12 * page_size, page_size, CPU, stamps=False)
    pages = {1: [5, 2], 3: [7]}
    table.extend([row(1, (5, 2), 0), row(3, (7,), 0)])
    table.extend([row(1, (9, 4, 6), 2), row(3, (), 1)])
    pages[1] += [9, 4, 6]
    read = table.read(torch.tensor([3, 1, 2]), 4 * page_size)
    for line, at in zip(read.tolist(), (3, 1, 2), strict=True):
        own = pages.get(at, [])
        expected = [page * page_size + offset for page in own for offset in range(page_size)]
        assert line == (expected + [0] * len(line))[: len(line)]


@pytest.mark.parametrize("few", [0, 3])
def test_expected_stamps_name_the_writer_and_the_position(few, monkeypatch):
    monkeypatch.setattr(specmatrix.engine.device.slot_table, "FEW", few)
    table = SlotTable(3, 8, 2, CPU, stamps=True)
    table.extend([row(1, (4, 3), 0, writers=((0, 17), (1, 18), (3, 51))), row(2, (5,), 0, writers=((0, 60),))])
    table.extend([row(1, (6, 7), 2)])
    stamps = [17 << 32, (18 << 32) + 1, (18 << 32) + 2, (51 << 32) + 3, (51 << 32) + 4]
    assert table.expected(torch.tensor([1]), 5).tolist() == [stamps]
    # The row's next residence is another one from its first position on.
    table.extend([row(1, (8,), 0, writers=((0, 70),))])
    assert table.expected(torch.tensor([1]), 8).tolist() == [[(70 << 32) + position for position in range(8)]]
    assert not table.writers[0].any() and table.writers[2].unique().tolist() == [60]


@pytest.mark.parametrize(("bound", "padded_kv_len"), [(1, 16), (16, 16), (17, 32), (33, 40), (40, 40)])
def test_steps_read_in_strides_up_to_the_tables_width(bound, padded_kv_len):
    table = SlotTable(3, 40, 2, CPU, stamps=False)
    assert table.pad_kv_len(bound) == padded_kv_len
    assert table.read(torch.tensor([1, 2]), padded_kv_len).shape == (2, padded_kv_len)


def test_stamps_of_different_generations_and_positions_differ():
    writers, positions = torch.tensor([[1], [2], [3]]), torch.arange(4000)
    assert stamp(writers, positions).unique().numel() == 12000
    assert int(stamp(torch.tensor(1), torch.tensor(0))) != 0
