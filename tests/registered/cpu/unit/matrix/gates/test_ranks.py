"""The verdict over the records of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.subjects.observations import StepForwards, WorkLog
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = prepare(Cell.from_id("eagle3.tp2.pair"))
SAME = ("a", "a")


@pytest.mark.parametrize(
    ("found", "state", "message"),
    [
        (Agreement(2, 7, 7, SAME), State.PASS, ""),
        (None, State.NOT_MEASURED, "no rank reported its steps"),
        (Agreement(2, 3, 2, ("a", "b"), "step 3: why"), State.FAIL, "step 3: why"),
        (Agreement(4, 7, 7, SAME * 2), State.FAIL, "4 ranks reported their steps; the cell has 2"),
        (Agreement(2, 0, 0, SAME), State.NOT_MEASURED, "0 plans and 0 results were compared; expected equally many"),
        (Agreement(2, 7, 6, SAME), State.NOT_MEASURED, "7 plans and 6 results were compared; expected equally many"),
        (Agreement(2, 7, 7, ("a", "b")), State.FAIL, "the ranks' final digests have 2 different values, although"),
    ],
)
def test_the_verdict(found: Agreement | None, state: State, message: str):
    outcome = RanksGate().judge_agreement(CELL, found)
    assert outcome.state is state and outcome.message.startswith(message)
    if found is not None:
        known = {"ranks": found.ranks, "planned": found.planned, "read": found.read}
        assert outcome.numbers == known | {"divergent": int(found.divergence is not None)}


@pytest.mark.parametrize(("launched", "state"), [(7, State.PASS), (5, State.FAIL), (9, State.FAIL)])
def test_the_plans_compared_are_those_of_this_engine(launched, state):
    assert RanksGate().applies(CELL.cell) and not RanksGate().applies(Cell())
    work = WorkLog((), {}, (StepForwards(0, 1, (), ()),) * launched)
    run = Run((), (), {}, {}, {}, None, None, 0.0, work=work, ranks=Agreement(2, 7, 7, SAME))
    outcome = RanksGate().judge(CELL, run, run)
    text = f"7 plans were compared, but this engine launched {launched} steps"
    assert (outcome.state, outcome.message) == (state, "" if state is State.PASS else text)
    assert RanksGate().judge(CELL, replace(run, work=None), run).state is State.PASS
