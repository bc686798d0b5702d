"""The counter rule of a whole stage, from its numbers to the pages that show it."""

import json

import pytest

from specmatrix.reports.compare.compare import compare
from specmatrix.reports.render.comparison import comparison_markdown, comparison_page
from specmatrix.reports.render.run import write_run
from specmatrix.reports.render.terminal import print_comparison, print_run
from specmatrix.reports.schema import CounterDemand
from specmatrix.reports.store import load
from specmatrix.reports.summary import CounterChange, compare_counters, judge_counters

from .conftest import printed

DEMAND = CounterDemand(("tree.branched", "retract.done", "prefix.hit"), {"stamp.wrong": "slots are their owner's"}, 2)
UNHIT = "o cell hit 1 required counter: retract.done"


def report(directory, write_report, make_cell, *evidence: dict[str, int], **header: object):
    cells = [make_cell(f"eagle3.k{n}", evidence=counts) for n, counts in enumerate(evidence)]
    return load(write_report(directory, cells, **({"stage": "nightly", "counters": DEMAND} | header)))


MET = {"tree.branched": 1, "retract.done": 2, "prefix.hit": 3}
BROKEN = MET | {"stamp.wrong": 4}
ZERO = "counter stamp.wrong must stay at zero but was hit 4 times: slots are their owner's"
JUDGED = [
    (DEMAND, "nightly", MET, "PASS", "all 3 required counters hit, 1 at zero as required"),
    (DEMAND, "nightly", MET | {"retract.done": 0}, "FAIL", f"n{UNHIT}"),
    (DEMAND, "nightly", {}, "FAIL", "no cell hit 3 required counters: tree.branched, retract.done, prefix.hit"),
    (DEMAND, "nightly", BROKEN, "FAIL", ZERO),
    (CounterDemand((), {}, 3), "nightly", {}, "NOT JUDGED", "counter coverage is not checked: only 2 of the stage's 3"),
    (None, "pr", {}, "NOT JUDGED", "counter coverage is checked in nightly runs only"),
]


@pytest.mark.parametrize(("demand", "stage", "hits", "state", "message"), JUDGED, ids=range(len(JUDGED)))
def test_a_whole_stage_is_judged(demand, stage, hits, state, message):
    verdict = judge_counters(demand, stage, 2, hits)
    assert verdict.state == state and verdict.message.startswith(message)


def test_cells_prove_it_together(tmp_path, write_report, make_cell):
    evidence = ({"tree.branched": 3, "prefix.hit": 0}, {"retract.done": 1, "prefix.hit": 1})
    run = write_run(report(tmp_path, write_report, make_cell, *evidence))
    assert run.verdict == "green"
    assert "all 3 required counters hit, 1 at zero as required" in printed(print_run, run)


def test_an_unhit_counter_is_red_everywhere(tmp_path, write_report, make_cell):
    run = write_run(report(tmp_path, write_report, make_cell, {"tree.branched": 3}, {"prefix.hit": 1}))
    assert (run.verdict, run.red) == ("red", ())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["counters"] == {"state": "FAIL", "message": f"n{UNHIT}", "unhit": ["retract.done"], "broken": []}
    assert (summary["red"], summary["pass"]) == (0, 2)
    for text in ((tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text(), printed(print_run, run)):
        assert UNHIT in text.replace("\\", "")


@pytest.mark.parametrize(
    ("old", "new", "header", "reasons"),
    [
        (MET, {"tree.branched": 1, "prefix.hit": 3}, {}, (f"n{UNHIT}",)),
        (MET, MET, {"counters": CounterDemand(("nothing.hit",), {}, 2)},
         ("no cell hit 1 required counter: nothing.hit",)),
        (MET, BROKEN, {}, (ZERO,)),
        ({"tree.branched": 1, "prefix.hit": 3}, {"prefix.hit": 3}, {},
         ("no cell hit 2 required counters: tree.branched, retract.done",)),
        (BROKEN, BROKEN, {}, ()),
        (BROKEN, MET, {}, ()),
        (MET, MET, {"counters": None},
         ("base meets its counter coverage, and in head this tier checks no counter coverage",)),
        (MET, MET, {"counters": None, "tier": "gpu1"}, ()),
        (MET, MET, {"counters": CounterDemand((), {}, 3)}, ("base meets its counter coverage, and in head counter "
         "coverage is not checked: only 2 of the stage's 3 cells ran",)),
    ],
)  # fmt: skip
def test_a_comparison_is_red_by_counter_coverage(tmp_path, write_report, make_cell, old, new, header, reasons):
    base = report(tmp_path / "base", write_report, make_cell, old, {"a": 1, "b": 1, "c": 1})
    head = report(tmp_path / "head", write_report, make_cell, new, {"a": 1, "b": 1, "c": 1}, **header)
    comparison = compare(base, head)
    assert comparison.reasons == reasons
    assert comparison.verdict == ("red" if reasons else "green")


@pytest.mark.parametrize("state", ["FAIL", "INFRA"])
def test_what_a_crash_left_out_is_not_called_unexercised(tmp_path, write_report, make_cell, change_cell, state):
    whole = [make_cell(name, evidence={"prefix.hit": 2, f"{name}.only": 1}) for name in "ab"]
    ended = change_cell(whole[1], state=state, error="LedgerError: no room", gates=(), evidence={"prefix.hit": 1})
    base = load(write_report(tmp_path / "base", whole))
    head = load(write_report(tmp_path / "head", [whole[0], ended]))
    assert compare(base, head).counters == compare(head, base).counters == CounterChange((), ())


def test_a_comparison_names_what_is_no_longer_exercised(tmp_path, write_report, make_cell):
    assert compare_counters({"a": 1, "b": 0, "c": 2}, {"b": 3, "c": 1}) == CounterChange(("a",), ("b",))
    base = report(tmp_path / "base", write_report, make_cell, {"tree.branched": 3, "prefix.hit": 2})
    head = report(tmp_path / "head", write_report, make_cell, {"retract.done": 3, "prefix.hit": 1})
    comparison = compare(base, head)
    for text in (
        comparison_markdown(comparison), comparison_page(comparison), printed(print_comparison, comparison),
    ):  # fmt: skip
        plain = text.replace("\\", "")
        assert "1 counter no longer hit: tree.branched" in plain
        assert "1 counter newly hit: retract.done" in plain
