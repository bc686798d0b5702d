"""When the first red cell comes: estimated from the plan, and with a fault really planted."""

import pytest

from specmatrix.benchmarks import order
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.order import OrderedCell, stored_order

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def test_a_fault_is_found_when_the_first_cell_that_finds_it_has_ended():
    cells = of_gpus(stage_cells("pr"), 0)
    alone = [cell.id for cell in cells if sum(cell.start_key == other.start_key for other in cells) == 1]
    rows = [OrderedCell(alone[0], 2.0, ("a",)), OrderedCell(alone[1], 1.0, ("a", "b"))]
    rows += [OrderedCell(name, 1.0, ()) for name in alone[2:6]] + [OrderedCell(alone[6], 0.5, ("c",))]
    found = order.first_reds(rows, {row.cell: place for place, row in enumerate(rows)})
    assert found["a"] == found["b"] == order.BEGIN + 1.0 < found["c"]
    late = order.first_reds(rows, {})
    assert {*late} == {*found} and sum(late.values()) > sum(found.values())


def test_the_stored_order_is_better_than_none():
    shared, median, old_shared, old_median = order.measure()
    assert shared.ratio > 10 * old_shared.ratio and median.ratio < old_median.ratio / 5
    assert {shared.goal, median.goal} == {order.SHARE, order.MEDIAN} and old_shared.goal is None


def test_without_an_order_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(order, "stored_order", tuple)
    (metric,) = order.measure()
    assert metric.state == "not measured" and "no order is stored" in metric.note


@pytest.mark.nightly
def test_a_planted_fault_is_found():
    name = stored_order()[0].faults[0]
    within, seconds = order.measured("x", [name], ordered=True)
    assert within.ratio == 1.0 and 0 < seconds.ratio < order.SOON
