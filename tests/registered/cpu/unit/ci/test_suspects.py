"""What a red run says of the lines of a change."""

from types import SimpleNamespace

import pytest

from specmatrix.ci.run import suspect_lines
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run import executed_lines
from specmatrix.matrix.run.provenance import judged, lost
from specmatrix.matrix.workloads.prepared_cell import prepare

CHANGED = {"engine/loop.py": {4, 5, 9}}
RED, OTHER, GREEN, RANKS, BROKEN = "eagle3.s3.v2", "eagle3.s3.v2.pair", "none.pair", "none.tp2.pair", "none.v2.pair"


def record(name: str, state: State):
    return judged(prepare(Cell.from_id(name)), [Outcome("lossless", state, message="" if state is State.PASS else "x")])


def said(red, green, executed=None, changed=CHANGED) -> list[str]:
    failing = [record(name, State.FAIL) if name != BROKEN else lost(prepare(Cell.from_id(name)), "x") for name in red]
    view = SimpleNamespace(red=failing, cells=[*failing, *(record(name, State.PASS) for name in green)])
    with pytest.MonkeyPatch.context() as patch:
        # By default no cell may run again.
        again = pytest.fail if executed is None else lambda cells, *_: executed["red" if RED in cells else "green"]
        patch.setattr(executed_lines, "executed", again)
        return [*suspect_lines(view, changed, "cpu", 0)]


def test_lines_that_only_failing_cells_execute_are_named():
    executed = {"red": {"engine/loop.py": {4, 5, 9}}, "green": {"engine/loop.py": {9}}}
    assert said([RED], [GREEN], executed) == [
        f"engine/loop.py:4-5: executed by {RED}, by none of 1 passing cell beside it"
    ]


def test_a_green_run_says_nothing_of_the_lines():
    assert said([], [GREEN]) == []


@pytest.mark.parametrize(
    ("red", "green", "changed"),
    [([RED, OTHER], [], CHANGED), ([RED], [RANKS], CHANGED), ([RANKS, BROKEN], [GREEN], CHANGED), ([RED], [GREEN], {})],
)
def test_nothing_runs_again_where_nothing_could_be_concluded(red, green, changed):
    assert said(red, green, changed=changed) == []


def test_lines_that_passing_cells_execute_too_are_not_named():
    executed = {"red": {"engine/loop.py": {4, 5}}, "green": {"engine/loop.py": {4, 5, 9}}}
    assert said([RED, OTHER], [GREEN], executed) == []
