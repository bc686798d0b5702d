"""Which gate killed which fault: red with the fault, passing without it; a crash kills nothing."""

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.fault import Fault
from specmatrix.matrix.faults.kill_matrix import Matrix, kill_of, shares
from specmatrix.matrix.faults.plant import CellVerdict, Trial

FAULT = Fault("made-up", "race", "sglang#1", "part.py", "a", "b", ("lossless",), ("none",), "for a test")
GREEN = {("none", "lossless"): True, ("none", "finish"): True, ("none", "acceptance"): False}


def seen(error: str | None = None, died: str | None = None, **states: str) -> Trial:
    gates = {gate: (state, f"{gate} says so") for gate, state in states.items()}
    return Trial((CellVerdict("none", gates, error, 1.0),), died)


def test_a_gate_that_fails_kills():
    kill = kill_of(FAULT, seen(lossless="FAIL", finish="PASS"), GREEN)
    assert kill.killed_by == ("lossless",)
    assert kill.messages == {"lossless": "none: lossless says so"}
    assert not kill.unexpected
    assert kill.crashed is None


def test_evidence_that_the_fault_took_away_kills():
    assert kill_of(FAULT, seen(lossless="NOT MEASURED"), GREEN).killed_by == ("lossless",)


@pytest.mark.parametrize("gate", ["acceptance", "distribution"])
def test_a_gate_that_is_red_or_absent_without_the_fault_kills_nothing(gate: str):
    assert not kill_of(FAULT, seen(**{gate: "FAIL"}), GREEN).killed


def test_a_kill_by_an_unexpected_gate_is_marked():
    assert kill_of(FAULT, seen(finish="FAIL"), GREEN).unexpected


def test_a_crash_is_no_kill():
    kill = kill_of(FAULT, seen(error="IndexError: 4"), GREEN)
    assert (kill.killed, kill.crashed) == (False, "IndexError: 4")
    assert kill_of(FAULT, seen(died="exit status 1: gone"), GREEN).crashed == "exit status 1: gone"


def test_a_survivor_or_a_red_unfaulted_run_is_not_ok():
    dead = kill_of(FAULT, seen(lossless="FAIL"), GREEN)
    alive = kill_of(FAULT, seen(lossless="PASS"), GREEN)
    assert Matrix((dead,), ()).ok
    assert not Matrix((dead, alive), ()).ok
    assert not Matrix((dead,), ("none: finish is FAIL: why",)).ok
    assert Matrix((dead, alive), ()).survivors == (alive,)


def test_only_killers_are_named():
    alone = kill_of(FAULT, seen(lossless="FAIL"), GREEN)
    both = kill_of(FAULT, seen(lossless="FAIL", finish="FAIL"), GREEN)
    sole = Matrix((alone, both), ()).sole
    assert sole["lossless"] == ("made-up",)
    assert sole["finish"] == ()


def test_the_machine_readable_form():
    kill = kill_of(FAULT, seen(error="IndexError: 4", lossless="FAIL", finish="FAIL"), GREEN)
    assert Matrix((kill, kill_of(FAULT, seen(), GREEN)), (), seconds={"none": 0.12345}).as_dict() == {
        "total": 2,
        "killed": 1,
        "faults": [
            {
                "id": "made-up",
                "category": "race",
                "origin": "sglang#1",
                "killed_by": ["lossless", "finish"],
                "crashed": True,
                "cells": ["none"],
            },
            {
                "id": "made-up",
                "category": "race",
                "origin": "sglang#1",
                "killed_by": [],
                "crashed": False,
                "cells": [],
            },
        ],
        "cell_seconds": {"none": 0.123},
    }


def test_the_red_cells_of_a_fault_are_listed_in_the_order_in_which_they_ran():
    verdicts = [
        CellVerdict(cell, {"lossless": (state, "")}, error, 1.0)
        for cell, state, error in (
            ("none.pair", "FAIL", None),
            ("none", "PASS", None),
            ("eagle3", "PASS", "IndexError"),
        )
    ]
    passed = {(verdict.cell, "lossless"): True for verdict in verdicts}
    assert kill_of(FAULT, Trial(tuple(verdicts), None), passed).cells == ("none.pair", "eagle3")


def test_shares_keep_a_start_together():
    cells = [Cell.from_id(text) for text in ("none", "none.pair", "none.p4", "none.p4.burst", "standalone.pair")]
    parts = shares(cells, 2)
    assert sorted(cell.id for part in parts for cell in part) == sorted(cell.id for cell in cells)
    homes = [{cell.start_key for cell in part} for part in parts]
    assert homes[0].isdisjoint(homes[1])
    assert shares(cells[:1], 2) == [cells[:1]]


def test_an_incomplete_matrix_is_not_ok_and_names_what_is_missing():
    dead = kill_of(FAULT, seen(lossless="FAIL"), GREEN)
    partial = Matrix((dead,), (), ("other",))
    assert not partial.ok and partial.as_dict()["missing"] == ["other"]
    assert "missing" not in Matrix((dead,), ()).as_dict()
