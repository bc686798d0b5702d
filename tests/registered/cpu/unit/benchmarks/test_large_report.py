"""Large reports: the requested number of cells, in whole starts, of which the requested share differs."""

from collections import Counter

import pytest

from specmatrix.benchmarks.large_report import Change, starts, write
from specmatrix.matrix.cells.axes import START_AXES
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.reports.compare import compare
from specmatrix.reports.compare.cell_state import ChangeState
from specmatrix.reports.store import load

CELLS = 3000


def test_cells_are_spread_over_the_starts_of_the_nightly_stage():
    rows = starts(CELLS)
    cells = [cell for row in rows for cell in row]
    assert len(cells) == len(set(cells)) == CELLS
    keys = [{tuple(cell[: len(START_AXES)]) for cell in row} for row in rows]
    assert all(len(key) == 1 for key in keys) and len(set.union(*keys)) == len(rows)
    assert max(map(len, rows)) <= 1 + CELLS // len(rows) + min(map(len, rows))
    assert {cell.algorithm for cell in cells} == {cell.algorithm for cell in stage_cells("nightly")}


def test_more_cells_than_there_are_is_an_error():
    with pytest.raises(
        ValueError, match=r"cells must be at most \d+, the cells of stage nightly\'s starts, got 100000000"
    ):
        starts(100_000_000)


@pytest.mark.nightly
def test_a_report_is_green_and_only_the_wanted_share_differs(tmp_path):
    cases = {"base": Change(), "cells": Change(0.1), "starts": Change(0.1, "v1")}
    for seconds, (name, change) in enumerate(cases.items()):
        write(tmp_path / name, CELLS, float(seconds), change)
    lines = (tmp_path / "base" / "report.jsonl").read_bytes().splitlines()
    text = [line for line in lines if line.startswith(b'{"kind":"cell"')]
    assert 1200 < sum(map(len, text)) / CELLS < 2500, "as long as those of a run"
    base, cells, moved = (load(tmp_path / name) for name in cases)
    assert len(base) == CELLS and {record.state for record in base} == {"PASS"}
    lengths = [(before, after) for before, after in zip(base, cells, strict=True) if before.gates != after.gates]
    assert len(lengths) == CELLS // 10
    versions = Counter(record.resolved["spec_version"] for record in base)
    versions.subtract(record.resolved["spec_version"] for record in moved)
    assert 0.1 * CELLS <= versions["v2"] == -versions["v1"] < 0.12 * CELLS
    counts = compare(base, moved).counts
    assert counts[ChangeState.REWRITTEN] == versions["v2"] and counts[ChangeState.SAME] == CELLS - versions["v2"]
    assert len(base.starts) == len(starts(CELLS))
