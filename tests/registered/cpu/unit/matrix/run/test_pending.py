"""What the record of a cell starts from: what is asked of it in a tier, and its waiver."""

from dataclasses import replace

import pytest

import specmatrix.matrix.run.pending
from specmatrix.ci.local import ShardJob, lost_cell
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.run.pending import unrun
from specmatrix.matrix.run.waivers import waiver_for
from specmatrix.reports.schema import Waiver, WaiverRule

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


def test_a_gpu_tier_asks_for_the_same_on_a_gpu_in_the_precision_of_a_cpu():
    cell = Cell.from_id("eagle3.s3.k4.n8.v2")
    assert asked(cell).device == asked(cell).dtype == "auto"
    assert asked(cell, 1) == replace(asked(cell), device="cuda", dtype="float32")
    record = unrun(cell, "gpu1", 2)
    assert (record.state, record.expect) == ("NOT MEASURED", "runs")
    assert record.requested["device"] == "cuda"
    assert record.repro == f"specmatrix run --tier gpu1 --cells '{cell.id}' --seed 2"


@pytest.mark.parametrize(("text", "waived"), [("none.length", True), ("eagle3.k4", False)])
def test_a_cell_carries_its_waiver_whether_it_ran_or_was_lost(monkeypatch, text, waived):
    rule = WaiverRule("algorithm=none", "the machines of June are slow", "2026-06-30")
    monkeypatch.setattr(specmatrix.matrix.run.pending, "waiver_for", lambda cell: waiver_for(cell, (rule,)))
    cell = Cell.from_id(text)
    for record in (unrun(cell, "cpu", 0), lost_cell(cell, ShardJob(0, "cpu", "pr"), "the power went")):
        assert record.waived == (Waiver(rule.reason, rule.expiry) if waived else None)
