"""A default is promoted only by a whole run in which each gate of its evidence passes in each cell."""

import pytest
from msgspec.structs import replace

from specmatrix.reports.schema import CellRecord, GateResult, StartRecord
from tools.incidents.incident import PromotedDefault, Shortfall
from tools.incidents.replay import promotion
from tools.incidents.verdict import refusals, without

EVIDENCE = ("lossless", "ledger")


def record(name: str) -> CellRecord:
    gates = tuple(GateResult(gate, "PASS") for gate in (*EVIDENCE, "finish"))
    return CellRecord(name, "PASS", StartRecord({}), {}, f"run {name}", gates, {})


WHOLE = [record("a"), record("b")]


def test_a_whole_green_run_is_accepted():
    assert refusals(["a", "b"], EVIDENCE, WHOLE) == ()


def test_a_red_gate_is_named_with_its_cells():
    red = replace(record("b"), state="FAIL", gates=(GateResult("lossless", "FAIL"), GateResult("ledger", "PASS")))
    assert refusals(["a", "b"], EVIDENCE, [WHOLE[0], red]) == ("lossless is FAIL in 1 of 2 cells, b",)
    both = [replace(red, id="a"), red]
    assert refusals(["a", "b"], EVIDENCE, both) == ("lossless is FAIL in 2 of 2 cells, the first is a",)


def test_a_partial_run_cannot_pass_for_a_whole_one():
    assert refusals(["a", "b"], EVIDENCE, WHOLE[:1]) == ("the run is partial: 1 of 2 cells is missing, b",)
    assert refusals(["a", "b"], EVIDENCE, []) == ("the run is partial: 2 of 2 cells are missing, the first is a",)


@pytest.mark.parametrize("what", ["missing", "NOT MEASURED"])
def test_a_gate_that_did_not_run_or_measured_nothing_is_no_evidence(what):
    lacking = without(WHOLE, Shortfall("b", "ledger", what))
    assert refusals(["a", "b"], EVIDENCE, lacking) == (f"ledger is {what} in 1 of 2 cells, b",)


def test_a_cell_without_a_verdict_has_no_gates():
    failed = CellRecord("b", "INFRA", StartRecord({}), {}, "run b", (), {}, error="out of disk")
    found = refusals(["a", "b"], EVIDENCE, [WHOLE[0], failed])
    assert found == ("lossless is missing in 1 of 2 cells, b", "ledger is missing in 1 of 2 cells, b")


def test_other_gates_and_cells_do_not_matter():
    finish = replace(record("b"), state="FAIL", gates=(*WHOLE[0].gates[:2], GateResult("finish", "FAIL")))
    other = replace(finish, id="c", gates=(GateResult("lossless", "FAIL"),))
    assert refusals(["a", "b"], EVIDENCE, [WHOLE[0], finish, other]) == ()


def test_a_shortfall_takes_away_what_it_says():
    assert [each.id for each in without(WHOLE, Shortfall("a"))] == ["b"]
    assert Shortfall("a").text == "if a were missing"
    assert Shortfall("a", "ledger", "NOT MEASURED").text == "if ledger of a were NOT MEASURED"


def test_a_promoted_default_needs_the_evidence_of_its_row():
    gates = tuple(GateResult(gate, "PASS") for gate in ("lossless", "ledger", "effective"))
    whole = [replace(record(name), gates=gates) for name in ("a", "b")]
    row = PromotedDefault("spec_version", "a tree (topk > 1)")
    line, reasons = promotion(row, ["a", "b"], whole)
    assert line.endswith(": accepted: lossless, ledger, effective PASS in all 2 cells") and not reasons
    line, reasons = promotion(replace(row, shortfall=Shortfall("b")), ["a", "b"], whole)
    assert ", if b were missing: refused: the run is partial" in line and len(reasons) == 1
