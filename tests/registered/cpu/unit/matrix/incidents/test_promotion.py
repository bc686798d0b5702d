"""A default is promoted only by a whole run in which each gate of its evidence passes in each cell."""

import pytest
from msgspec.structs import replace

from specmatrix.errors import ConfigError
from specmatrix.matrix.incidents.promotion import Shortfall, refusals, without
from specmatrix.matrix.incidents.replay import evidence_of
from specmatrix.reports.schema import CellRecord, GateResult, StartRecord

EVIDENCE = ("lossless", "ledger")


def record(name: str) -> CellRecord:
    gates = tuple(GateResult(gate, "PASS") for gate in (*EVIDENCE, "finish"))
    return CellRecord(name, "PASS", StartRecord({}), {}, f"run {name}", gates=gates)


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
    failed = CellRecord("b", "INFRA", StartRecord({}), {}, "run b", error="out of disk")
    found = refusals(["a", "b"], EVIDENCE, [WHOLE[0], failed])
    assert found == ("lossless is missing in 1 of 2 cells, b", "ledger is missing in 1 of 2 cells, b")


def test_other_gates_and_cells_do_not_matter():
    finish = replace(record("b"), state="FAIL", gates=(*WHOLE[0].gates[:2], GateResult("finish", "FAIL")))
    other = replace(finish, id="c", gates=(GateResult("lossless", "FAIL"),))
    assert refusals(["a", "b"], EVIDENCE, [WHOLE[0], finish, other]) == ()


def test_nothing_required_is_no_proof():
    assert refusals([], EVIDENCE, WHOLE) == ("no cell is required, so nothing would prove it",)
    assert refusals(["a"], (), WHOLE) == ("the default names no gate as its evidence",)


def test_a_shortfall_takes_away_what_it_says():
    assert [each.id for each in without(WHOLE, Shortfall("a"))] == ["b"]
    assert Shortfall("a").text == "if a were missing"
    assert Shortfall("a", "ledger", "NOT MEASURED").text == "if ledger of a were NOT MEASURED"


def test_the_evidence_is_that_of_the_row():
    assert evidence_of("spec_version", "a tree (topk > 1)") == ("lossless", "ledger", "effective")
    with pytest.raises(ConfigError) as caught:
        evidence_of("spec_version", "a bush")
    assert str(caught.value) == (
        "no default of spec_version has the condition 'a bush'; engine/core/config/defaults.py lists them"
    )
