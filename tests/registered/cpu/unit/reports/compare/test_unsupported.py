"""Unsupported cells: counted and listed everywhere, neither red nor passing."""

import json

import pytest

from specmatrix.reports.compare import Acknowledgement, ChangeState
from specmatrix.reports.render.run import write_run
from specmatrix.reports.render.terminal import print_run
from specmatrix.reports.schema import CounterDemand, GateResult, RewriteRecord
from specmatrix.reports.store import load

from ..conftest import printed

WHY = "vLLM has no tree drafts"
RED = (GateResult("lossless", "FAIL", {}, None, "3 tokens differ"),)


@pytest.fixture
def unsupported(make_cell):
    def make(name="a", **changes: object):
        start = {"resolved": None, "resolved_hash": None, "reasons": ()}
        return make_cell(
            name, **({"state": "UNSUPPORTED", "error": WHY, "gates": (), "evidence": {}} | start | changes)
        )

    return make


def change(comparison):
    assert len(comparison.changes) == 1
    return comparison.changes[0]


def test_every_output_counts_and_lists_it_and_the_run_is_green(tmp_path, make_cell, write_report, unsupported):
    run = write_run(load(write_report(tmp_path, [unsupported("tree.k4"), make_cell("b")])))
    assert (run.verdict, run.red, run.summary.red) == ("green", (), 0)
    assert json.loads((tmp_path / "summary.json").read_text())["unsupported"] == 1
    for text, number in (
        (printed(print_run, run), "1 unsupported"),
        ((tmp_path / "report.md").read_text(), "UNSUPPORTED 1"),
        ((tmp_path / "report.html").read_text(), "<b>1</b><span>unsupported</span>"),
    ):
        assert number in text and "tree.k4" in text and WHY in text


def test_a_run_of_nothing_else_proves_nothing(tmp_path, write_report, unsupported):
    run = write_run(load(write_report(tmp_path, [unsupported("a")])))
    assert run.verdict == "red"
    assert "red, no cell ran" in (tmp_path / "report.md").read_text()


def test_it_does_not_stand_for_a_cell_that_hits_counters(tmp_path, make_cell, write_report, unsupported):
    demand = CounterDemand(("speculated",), {}, 2)
    report = load(write_report(tmp_path, [unsupported("a"), make_cell("b")], stage="nightly", counters=demand))
    assert write_run(report).summary.counters.message == (
        "counter coverage is not checked: only 1 of the stage's 2 cells ran"
    )


@pytest.mark.parametrize("state", ["PASS", "FAIL", "NOT MEASURED", "INFRA"])
def test_a_cell_that_was_judged_and_is_no_longer_supported_is_lost(against, make_cell, unsupported, state):
    lost = against([make_cell("a", state=state)], [unsupported("a")])
    assert (lost.verdict, change(lost).state, change(lost).red) == ("red", ChangeState.LOST, True)
    assert change(lost).why == f"the cell is not supported in head: {WHY}; it was {state} in base"
    accepted = [Acknowledgement("lost", "a", "trees come later", "2026-12-31")]
    both = make_cell("z")
    excused = against([make_cell("a", state=state), both], [unsupported("a"), both], accepted)
    assert (excused.verdict, change(excused).excused, excused.unused) == ("green", "trees come later", ())


def test_a_cell_that_is_supported_now_is_new_and_red_only_if_it_is_red(against, make_cell, unsupported):
    green = against([unsupported("a"), make_cell("z")], [make_cell("a"), make_cell("z")])
    assert (green.verdict, change(green).state) == ("green", ChangeState.NEW)
    assert change(green).why == "the cell is not supported in base; it is PASS in head"
    red = against([unsupported("a")], [make_cell("a", state="FAIL", gates=RED)])
    assert (red.verdict, change(red).state, change(red).gates[0].gate) == ("red", ChangeState.NEW, "lossless")
    lost_machine = against([unsupported("a")], [make_cell("a", state="INFRA", gates=())])
    assert (lost_machine.verdict, change(lost_machine).state) == ("red", ChangeState.INFRA)


def test_what_neither_report_supports_is_the_same(against, make_cell, unsupported):
    rewrite = RewriteRecord("page_size", 3, 4, "pages are powers of two")
    other = unsupported("a", error="other words", requested={}, rewrites=(rewrite,))
    same = against([unsupported("a"), make_cell("z")], [other, make_cell("z")])
    assert (same.verdict, same.counts[ChangeState.SAME], same.changes, same.still_red) == ("green", 2, (), ())
    assert same.rewrites == same.choices == ()


def test_listing_it_or_not_is_reported_and_is_not_red(against, make_cell, unsupported):
    gone = against([unsupported("a"), make_cell("b")], [make_cell("b")])
    assert (gone.verdict, change(gone).state) == ("green", ChangeState.LOST)
    new = against([make_cell("b")], [unsupported("a"), make_cell("b")])
    assert (new.verdict, change(new).state) == ("green", ChangeState.NEW)
