"""When the first red cell comes: estimated from the plan, and with a fault really planted."""

from math import inf

import pytest

from specmatrix.benchmarks import order
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.order import OrderedCell, stored_order
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.patch import Edit, Patch


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


def test_mutants_count_that_some_cell_kills(monkeypatch):
    monkeypatch.setattr(order, "PATHS", ("engine/core/observe/rank_agreement.py",))
    monkeypatch.setattr(order, "equivalents", tuple)
    runs = [order.FirstRed(5.0), order.FirstRed(inf), order.FirstRed(order.LIMIT), order.FirstRed(3.0, "a traceback")]
    names = []

    def measured(changes):
        names.extend(changes)
        return dict(zip(changes, runs, strict=True))

    monkeypatch.setattr(order, "measured", measured)
    within, middle = order.measured_mutants(4)
    assert len(names) == 4 and (within.ratio, within.goal, middle.ratio) == (pytest.approx(2 / 3), 0.8, 5.0)
    assert within.note == (f"3 of 4 mutants of seed 3 are killed, late: {names[2]} 300.0 s; 1 broke the command itself")
    monkeypatch.setattr(order, "measured", lambda changes: dict.fromkeys(changes, order.FirstRed(inf)))
    (metric,) = order.measured_mutants(4)
    assert metric.state == "not measured" and metric.note == "no cell kills any of 4 mutants"


def test_a_run_without_a_report_is_no_figure_of_a_fault(monkeypatch):
    name = stored_order()[0].faults[0]
    monkeypatch.setattr(order, "measured", lambda changes, ordered: dict.fromkeys(changes, order.FirstRed(2.0, "oh")))
    (metric,) = order.measured_faults([name])
    assert metric.state == "red" and metric.note == f"the run with {name} left no report: oh"


def test_a_command_that_breaks_is_told_from_a_red_cell():
    run = order.first_red(Patch("x", (Edit("of_gpus", "for cell in cells", "for cell in ()[0]"),)))
    assert run.seconds < order.SOON and "IndexError" in run.error


def test_each_run_is_told_of_as_it_ends(monkeypatch, capsys):
    runs = {1: order.FirstRed(5.04), 2: order.FirstRed(inf), 3: order.FirstRed(3.0, "a traceback")}

    def first_red(change, ordered):
        if change not in runs:
            raise KeyboardInterrupt
        return runs[change]

    monkeypatch.setattr(order, "first_red", first_red)
    monkeypatch.setattr(order, "AT_ONCE", 1)
    with pytest.raises(KeyboardInterrupt):
        order.measured({"a": 1, "b": 2, "c": 3, "d": 4})
    assert capsys.readouterr().err.splitlines() == [
        "a: red after 5.0 s",
        "b: no cell is red",
        "c: broken after 3.0 s",
    ]


@pytest.mark.nightly
def test_a_planted_fault_is_found():
    name = stored_order()[0].faults[0]
    (run,) = order.measured({name: select([name])[0].patch}).values()
    assert 0 < run.seconds < order.SOON and not run.error
