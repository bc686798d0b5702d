"""What a red run says of the lines of a change."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from specmatrix.ci.run import suspect_lines
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run import executed_lines
from specmatrix.matrix.run.record import judged, lost
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.schema import CellResult

CHANGED = {"engine/loop.py": {4, 5, 9}}
RED, OTHER, GREEN, RANKS, BROKEN = "eagle3.s3.v2", "eagle3.s3.v2.pair", "none.pair", "none.tp2.pair", "none.v2.pair"


def record(name: str, state: State):
    return judged(prepare(Cell.from_id(name)), [Outcome("lossless", state, message="" if state is State.PASS else "x")])


class RunsBeside(list):
    """Runs of cells that pass, unless they are `OTHER`; it holds what was run."""

    def __call__(self, cells: Sequence[Cell]) -> Iterator[CellResult]:
        self += [cell.id for cell in cells]
        return iter([record(name, State.FAIL if name == OTHER else State.PASS) for name in self])


def said(red, green, executed=None, changed=CHANGED, left=(), runs=None) -> list[str]:
    failing = [record(name, State.FAIL) if name != BROKEN else lost(prepare(Cell.from_id(name)), "x") for name in red]
    view = SimpleNamespace(red=failing, cells=[*failing, *(record(name, State.PASS) for name in green)])
    with pytest.MonkeyPatch.context() as patch:
        # By default no cell may run again.
        again = pytest.fail if executed is None else lambda cells, *_: executed["red" if RED in cells else "green"]
        patch.setattr(executed_lines, "executed", again)
        chosen = [Cell.from_id(name) for name in (*red, *green, *left)]
        return [*suspect_lines(view, changed, "cpu", 0, chosen, pytest.fail if runs is None else runs)]


def test_lines_that_only_failing_cells_execute_are_named():
    executed = {"red": {"engine/loop.py": {4, 5, 9}}, "green": {"engine/loop.py": {9}}}
    assert said([RED], [GREEN], executed) == [
        f"engine/loop.py:4-5: executed by {RED}, by none of 1 passing cell beside it"
    ]


def test_a_green_run_says_nothing_of_the_lines():
    assert said([], [GREEN]) == []


WHICH = "which of the changed lines only failing cells execute is not known: "


@pytest.mark.parametrize(
    ("red", "green", "changed", "sentence"),
    [
        ([RED, OTHER], [], CHANGED, "no cell passed that they could be compared with"),
        ([RED], [RANKS], CHANGED, "no cell passed that they could be compared with"),
        ([RANKS, BROKEN], [GREEN], CHANGED, "only failed cells of one rank run again, and none of 2 red cells is one"),
        ([RED], [GREEN], {}, "the change has none in a Python file"),
    ],
)
def test_nothing_runs_again_where_nothing_could_be_concluded(red, green, changed, sentence):
    assert said(red, green, changed=changed) == [WHICH + sentence]


EXECUTED = {"red": {"engine/loop.py": {4, 5}}, "green": {"engine/loop.py": {5}}}
LEFT = ("none.v2.mixed_lengths", "eagle3.tp2.s3.v2.pair", OTHER, "none.qwen3.v2", "eagle3.s3.v2.mixed_lengths")


def test_where_no_cell_passed_the_nearest_that_did_not_run_are_tried():
    runs = RunsBeside()
    line = f"engine/loop.py:4: executed by {RED}, by none of 2 passing cells beside it"
    assert said([RED], [], EXECUTED, left=LEFT, runs=runs) == [line]
    assert runs == [OTHER, "eagle3.s3.v2.mixed_lengths", "none.v2.mixed_lengths"]
    runs = RunsBeside()
    none = WHICH + "no cell passed that they could be compared with"
    assert said([RED], [RANKS], EXECUTED, left=[OTHER], runs=runs) == [none]
    assert runs == [OTHER], "it fails too"


def test_a_sentence_says_that_no_line_separates_the_cells():
    executed = {"red": {"engine/loop.py": {4, 5}}, "green": {"engine/loop.py": {4, 5, 9}}}
    assert said([RED, OTHER], [GREEN], executed) == [
        "no changed line is executed by failing cells only: 2 failing and 1 passing cell ran again, traced"
    ]
