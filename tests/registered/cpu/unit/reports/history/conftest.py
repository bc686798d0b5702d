"""Histories of made-up reports."""

import pytest

from specmatrix.reports.history.store import add, read
from specmatrix.reports.schema import GateResult


@pytest.fixture
def gated(make_cell):
    """A cell with an acceptance gate and one red gate or none."""

    def make(name="eagle3", length=3.0, red="", seconds=1.0, **changes: object):
        gates = [GateResult("acceptance", "PASS", {"length": length})]
        gates += [GateResult(red, "FAIL", message=f"{red} is broken")] if red else []
        return make_cell(name, gates=tuple(gates), seconds=seconds, **changes)

    return make


@pytest.fixture
def history(tmp_path, write_report):
    """The history of rows (cells, changes of the header), an hour apart from each other."""

    def build(*rows: tuple):
        for number, (cells, changes) in enumerate(rows):
            created = {"created": f"2026-09-{number // 24 + 1:02}T{number % 24:02}:00:00+00:00"}
            add(write_report(tmp_path / f"run{number}", cells, **created, **changes), tmp_path / "history")
        return read(tmp_path / "history")

    return build
