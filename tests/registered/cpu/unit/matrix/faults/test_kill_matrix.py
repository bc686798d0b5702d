"""Which gate killed which fault: red with the fault, passing without it; a crash kills nothing."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.fault import Fault
from specmatrix.matrix.faults.kill_matrix import Matrix, kill_of, shares
from specmatrix.matrix.faults.plant import CellVerdict, Trial
from specmatrix.matrix.run.provenance import record
from specmatrix.matrix.workloads.prepared_cell import prepare

FAULT = Fault("made-up", "race", "sglang#1", "part.py", "a", "b", ("lossless",), ("none",), "for a test")
GREEN = {("none", "lossless"): True, ("none", "finish"): True, ("none", "acceptance"): False}


def seen(error: str | None = None, died: str | None = None, **states: str) -> Trial:
    gates = {gate: (state, f"{gate} says so") for gate, state in states.items()}
    return Trial((CellVerdict("none", gates, error, 1.0),), died)


def recorded(state: str) -> Trial:
    """A cell of that state that raised."""
    (verdict,) = seen("IndexError: 4").verdicts
    return Trial((replace(verdict, record=record(prepare(Cell()), state, error="IndexError: 4")),), None)


@pytest.mark.parametrize(
    ("trial", "killed_by", "unexpected", "crashed", "state"),
    [
        (seen(lossless="FAIL", finish="PASS"), ("lossless",), False, None, "killed"),
        (seen(lossless="NOT MEASURED"), ("lossless",), False, None, "killed"),  # evidence that the fault took away
        # A gate that is red or absent without the fault kills nothing.
        (seen(acceptance="FAIL"), (), False, None, "survived"),
        (seen(distribution="FAIL"), (), False, None, "survived"),
        (seen(finish="FAIL"), ("finish",), True, None, "killed"),
        (seen(lossless="FAIL", died="exit status 1: gone"), ("lossless",), False, "exit status 1: gone", "killed"),
        (seen(error="IndexError: 4"), (), False, "IndexError: 4", "INFRA"),
        (recorded("INFRA"), (), False, "IndexError: 4", "INFRA"),
        (recorded("FAIL"), (), False, "IndexError: 4", "crashed"),
        (seen(died="exit status 1: gone"), (), False, "exit status 1: gone", "INFRA"),
        (seen(died="exit status -6: gone"), (), False, "exit status -6: gone", "crashed"),
    ],
)
def test_a_gate_that_fails_kills_and_a_crash_does_not(trial, killed_by, unexpected, crashed, state):
    kill = kill_of(FAULT, trial, GREEN)
    assert (kill.killed_by, kill.unexpected, kill.crashed, kill.state) == (killed_by, unexpected, crashed, state)
    assert kill.killed == bool(killed_by)
    assert kill.messages == {gate: f"none: {gate} says so" for gate in killed_by}


def test_a_survivor_a_red_unfaulted_run_or_a_missing_fault_is_not_ok():
    dead, alive = (kill_of(FAULT, seen(lossless=state), GREEN) for state in ("FAIL", "PASS"))
    assert Matrix((dead,), ()).ok and "missing" not in Matrix((dead,), ()).as_dict()
    assert not Matrix((dead, alive), ()).ok and Matrix((dead, alive), ()).states == {"killed": 1, "survived": 1}
    assert not Matrix((dead,), ("none: finish is FAIL: why",)).ok
    partial = Matrix((dead,), (), ("other",))
    assert not partial.ok and partial.as_dict()["missing"] == ["other"]


def test_only_killers_are_named():
    both = kill_of(FAULT, seen(lossless="FAIL", finish="FAIL"), GREEN)
    sole = Matrix((kill_of(FAULT, seen(lossless="FAIL"), GREEN), both), ()).sole
    assert (sole["lossless"], sole["finish"]) == (("made-up",), ())


def test_the_machine_readable_form():
    kill = kill_of(FAULT, seen(error="IndexError: 4", lossless="FAIL", finish="FAIL"), GREEN)
    fault = {"id": "made-up", "category": "race", "origin": "sglang#1"}
    assert Matrix((kill, kill_of(FAULT, seen(), GREEN)), (), seconds={"none": 0.12345}).as_dict() == {
        "total": 2,
        "killed": 1,
        "faults": [
            fault | {"killed_by": ["lossless", "finish"], "state": "killed", "crashed": True, "cells": ["none"]},
            fault | {"killed_by": [], "state": "survived", "crashed": False, "cells": []},
        ],
        "cell_seconds": {"none": 0.123},
    }


def test_the_red_cells_of_a_fault_are_listed_in_the_order_in_which_they_ran():
    ran = (("none.pair", "FAIL", None), ("none", "PASS", None), ("eagle3", "PASS", "IndexError"))
    verdicts = [CellVerdict(cell, {"lossless": (state, "")}, error, 1.0) for cell, state, error in ran]
    passed = {(verdict.cell, "lossless"): True for verdict in verdicts}
    assert kill_of(FAULT, Trial(tuple(verdicts), None), passed).cells == ("none.pair", "eagle3")


def test_shares_keep_a_start_together():
    cells = [Cell.from_id(text) for text in ("none", "none.pair", "none.p4", "none.p4.burst", "standalone.pair")]
    parts = shares(cells, 2)
    assert sorted(cell.id for part in parts for cell in part) == sorted(cell.id for cell in cells)
    homes = [{cell.start_key for cell in part} for part in parts]
    assert homes[0].isdisjoint(homes[1])
    assert shares(cells[:1], 2) == [cells[:1]]
