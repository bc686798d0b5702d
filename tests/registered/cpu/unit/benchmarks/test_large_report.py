"""Large reports have the requested number of cells, and the requested share of them differs."""

from specmatrix.benchmarks.large_report import Change, write
from specmatrix.reports.compare import compare
from specmatrix.reports.compare.cell_state import ChangeState
from specmatrix.reports.store import load

CELLS = 3000


def test_a_report_is_green_and_only_the_wanted_share_differs(tmp_path):
    cases = {"base": Change(), "cells": Change(0.1), "starts": Change(0.1, "v1")}
    for seconds, (name, change) in enumerate(cases.items()):
        write(tmp_path / name, CELLS, float(seconds), change)
    base, cells, moved = (load(tmp_path / name) for name in cases)
    assert len(base) == CELLS and {record.state for record in base} == {"PASS"}
    differing = [before.id for before, after in zip(base, cells, strict=True) if before.gates != after.gates]
    assert len(differing) == CELLS // 10
    counts = compare(base, moved).counts
    assert counts[ChangeState.REWRITTEN] == CELLS // 10 and counts[ChangeState.SAME] == 0.9 * CELLS
