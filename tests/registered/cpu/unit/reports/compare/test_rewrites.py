import html

import pytest
from msgspec.structs import replace

from specmatrix.reports.compare import rewrites
from specmatrix.reports.compare.acknowledge import Acknowledged, Acknowledgement
from specmatrix.reports.compare.cell_state import LeftDefault, PathChange
from specmatrix.reports.compare.rewrites import PathChanges, choice_changes, explanation, path_changes, signature
from specmatrix.reports.render.comparison import comparison_markdown, comparison_page
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.schema import GateResult, ReasonRecord, RewriteRecord

from ..conftest import printed

NOBODY = Acknowledged()
WHAT = "num_draft_tokens: 6 -> 4"


def changes(pairs, acknowledged=NOBODY):
    return rewrites.rewrite_changes(pairs, acknowledged, PathChanges())


def rows(pairs, acknowledged=NOBODY):
    return [(row.status, row.signature, row.cells, row.silent, row.red) for row in changes(pairs, acknowledged)]


def test_signatures_use_the_resolved_names():
    assert signature(RewriteRecord("speculative_num_draft_tokens", 6, 4, "x")) == "num_draft_tokens: 6 -> 4"
    assert signature(RewriteRecord("disable_radix_cache", False, True, "x")) == "disable_radix_cache: off -> on"
    assert signature(RewriteRecord("page_size", 3, 4, "x")) == "page_size: 3 -> 4"


def test_a_rewrite_that_appears_in_a_cell_is_silent_and_red(make_cell, rewritten):
    pairs = [(make_cell("a"), rewritten("a")), (make_cell("b"), rewritten("b"))]
    assert rows(pairs) == [("new", WHAT, ("a", "b"), True, True)]


def test_of_several_reasons_the_most_frequent_is_given_and_the_others_are_counted(make_cell, rewritten):
    pairs = [(make_cell(name), rewritten(name, reason=reason)) for name, reason in zip("abcd", "yxxz", strict=True)]
    (new,) = changes(pairs)
    (gone,) = changes([(head, base) for base, head in pairs[:3]])
    assert new.cells == ("a", "b", "c", "d")
    assert (new.reason, gone.reason) == ("x (2 of 4), and 2 other reasons", "x (2 of 3), and 1 other reason")


def test_an_acknowledged_rewrite_is_not_red(make_cell, rewritten):
    entry = Acknowledgement("rewrite", "num_draft_tokens: * -> 4", "chains", "2026-12-31")
    found = changes([(make_cell("a"), rewritten("a"))], Acknowledged((entry,), "2026-01-01"))
    assert [(row.red, row.silent, row.excused) for row in found] == [(False, True, "chains")]


def test_a_new_cell_that_declares_its_rewrite_is_not_silent(rewritten):
    assert rows([(None, rewritten("a", expect="rewritten"))]) == [("new", WHAT, ("a",), False, False)]
    assert rows([(None, rewritten("a", expect="runs"))])[0][-1] is True


def test_an_old_cell_cannot_declare_a_new_rewrite(make_cell, rewritten):
    """A rule that the matrix takes from the engine must not excuse itself."""
    assert rows([(make_cell("a"), rewritten("a", expect="rewritten"))])[0][-1] is True


def test_gone_and_changed_rewrites_are_notices(make_cell, rewritten):
    assert rows([(rewritten("a"), make_cell("a"))]) == [("gone", WHAT, ("a",), False, False)]
    assert rows([(rewritten("a"), None)])[0][0] == "gone"
    changed = changes([(rewritten("a"), rewritten("a", reason="other words"))])
    assert [(row.status, row.red) for row in changed] == [("changed", False)]
    assert changed[0].reason == "a chain verifies steps + 1 tokens -> other words"


def test_a_moved_value_is_in_the_ledger_once(make_cell, rewritten):
    base = make_cell("a", resolved={"num_draft_tokens": 6})
    assert rows([(base, make_cell("a", resolved={"num_draft_tokens": 4}))]) == [("moved", WHAT, ("a",), True, True)]
    assert rows([(base, rewritten("a", resolved={"num_draft_tokens": 4}))]) == [("new", WHAT, ("a",), True, True)]


def test_equal_cells_change_nothing(make_cell, rewritten):
    assert rows([(make_cell("a"), make_cell("a")), (rewritten("b"), rewritten("b"))]) == []
    assert rewrites.new_rewrites(rewritten(), rewritten()) == ()


def test_choices_that_changed_value_or_reason(make_cell):
    old = ReasonRecord("spec_version", "v2", "by default"), ReasonRecord("page_size", 1, "any works")
    new = ReasonRecord("spec_version", "v2", "trees are green"), ReasonRecord("topk", 1, "new choice")
    base, head = make_cell("a", reasons=old), make_cell("a", reasons=new)
    found = choice_changes([(base, head)])
    assert [(row.field, row.base, row.base_because, row.head, row.head_because) for row in found] == [
        ("page_size", "1", "any works", "", ""),
        ("spec_version", "v2", "by default", "v2", "trees are green"),
        ("topk", "", "", "1", "new choice"),
    ]
    assert choice_changes([(base, base), (None, head), (base, None)]) == ()


def test_a_cell_that_the_machine_lost_has_nothing_in_the_ledger(make_cell, rewritten):
    lost = make_cell("a", state="INFRA", requested={}, resolved=None, reasons=(), gates=())
    assert rows([(rewritten("a"), lost)]) == [] and choice_changes([(make_cell("a"), lost)]) == ()


def test_a_cell_that_base_lost_is_a_new_one(make_cell, rewritten):
    lost = make_cell("a", state="INFRA", requested={}, resolved=None, reasons=(), gates=())
    assert rows([(lost, rewritten("a"))]) == rows([(None, rewritten("a"))])
    assert rows([(lost, make_cell("a"))]) == [] and rewrites.new_rewrites(lost, rewritten("a")) == ()


def test_equal_cells_run_the_same_path(make_cell):
    assert path_changes(make_cell(), make_cell()) == ()


def test_derived_values_follow_silently(make_cell):
    resolved = {**(make_cell().start.resolved or {}), "lag": 0, "num_pages": 7, "reasons": [1], "rewrites": [2]}
    resolved |= {"model_path": "/elsewhere", "random_seed": 3}
    assert path_changes(make_cell(), make_cell(resolved=resolved)) == ()


def test_a_rewrite_explains_before_a_reason_does(make_cell, rewritten):
    assert explanation(rewritten(), "num_draft_tokens") == "a chain verifies steps + 1 tokens"
    reason = ReasonRecord("speculative_eagle_topk", 1, "the default")
    assert explanation(make_cell(reasons=(reason,)), "topk") == "the default"
    assert explanation(make_cell(reasons=(reason,)), "page_size") == "the engine gives no reason"


def test_what_runs_as_requested_needs_no_reason(make_cell):
    cell = make_cell(requested={"page_size": 1, "speculative_eagle_topk": 2}, reasons=())
    assert explanation(cell, "page_size") == "as the cell requests"
    assert explanation(cell, "topk") == "the engine gives no reason", "topk 4 runs where 2 was requested"
    refused = make_cell(requested={"page_size": None}, resolved=None, reasons=())
    assert explanation(refused, "page_size") == "the engine gives no reason"


def slot(batch: int, *steps: int, **others: float) -> dict[str, object]:
    return {"batch_from": batch, "candidate_steps": list(steps), "ema_alpha": 0.2, "up_hysteresis": 0.0, **others}


@pytest.mark.parametrize(
    ("base", "head", "old", "new"),
    [
        (
            [],
            [slot(1, 1, 3, 7), slot(8, 1, 3), slot(32, 1)],
            "none",
            "steps 1, 3, 7 from batch 1; 1, 3 from 8; 1 from 32",
        ),
        (
            [slot(1, 1, 3), slot(8, 1)],
            [slot(1, 1, 3), slot(8, 1, ema_alpha=0.5)],
            "steps 1, 3 from batch 1; 1 from 8 (ema_alpha 0.2)",
            "steps 1, 3 from batch 1; 1 from 8 (ema_alpha 0.5)",
        ),
        (
            [slot(1, 3)],
            [slot(1, 3, window=4)],
            "steps 3 from batch 1 (window absent)",
            "steps 3 from batch 1 (window 4)",
        ),
        ("off", [slot(1, 3)], "off", str([slot(1, 3)])),
        ([{"steps": 3}], [{"steps": 4}], "[{'steps': 3}]", "[{'steps': 4}]"),
    ],
)
def test_changed_slots_of_adaptive_steps_are_words(make_cell, base, head, old, new):
    reason = ReasonRecord("speculative_adaptive_config", None, "no file is named")
    sides = [make_cell("a", resolved={"adaptive_slots": slots}, reasons=(reason,)) for slots in (base, head)]
    assert path_changes(*sides) == (PathChange("adaptive_slots", old, new, "no file is named"),)


def test_a_crash_is_no_refusal(make_cell):
    crashed = make_cell("a", state="FAIL", error="LedgerError: no room", gates=(), resolved=None)
    (change,) = path_changes(make_cell("a"), crashed)
    assert (change.signature(), change.because) == ("engine start: runs -> fails", "LedgerError: no room")
    (change,) = path_changes(crashed, make_cell("a"))
    assert change.signature() == "engine start: fails -> runs"


def test_a_cell_that_the_machine_lost_has_no_path(make_cell):
    lost = make_cell("a", state="INFRA", requested={}, resolved=None, reasons=(), gates=())
    assert path_changes(make_cell("a"), lost) == path_changes(lost, make_cell("a")) == ()


def test_cells_of_two_starts_are_looked_through_once(make_cell, change_cell):
    base = make_cell("a")
    reason = (ReasonRecord("spec_version", "v1", "trees are held back"),)
    head = change_cell(base, resolved={**base.start.resolved, "spec_version": "v1"}, reasons=reason)
    paths = PathChanges()
    found = paths.of(base, head)
    assert found == path_changes(base, head)
    assert found == (PathChange("spec_version", "v2", "v1", "trees are held back"),)
    assert paths.of(replace(base, id="b"), replace(head, id="b")) is found


@pytest.mark.parametrize("what", ["resolved", "requested", "reasons", "state"])
def test_every_other_change_of_a_start_is_compared_in_full(make_cell, change_cell, what):
    base = make_cell("a")
    head = change_cell(base, resolved={**base.start.resolved, "spec_version": "v1"})
    changed = {
        "resolved": {**head.start.resolved, "page_size": 64},
        "requested": {**head.start.requested, "page_size": 64},
        "reasons": (ReasonRecord("spec_version", "v1", "other words"),),
        "state": "INFRA",
    }
    stopped = {"error": "no space on the machine"} if what == "state" else {}
    other = change_cell(head, **{what: changed[what]}, **stopped)
    paths = PathChanges()
    paths.of(base, head)
    assert paths.of(base, other) == path_changes(base, other) != path_changes(base, head)


def test_a_refusal_is_reported_with_the_words_of_its_own_cell(make_cell, change_cell):
    base = make_cell("a")
    paths = PathChanges()
    for words in ("too many tokens", "no such page"):
        gate = GateResult("config", "PASS", {"predicted": words})
        refused = change_cell(base, resolved=None, gates=(gate,))
        assert paths.of(base, refused) == (PathChange("engine start", "runs", "refused", words),)


V1, V2 = (ReasonRecord("spec_version", version, f"{version} is the default") for version in ("v1", "v2"))


@pytest.fixture
def cell(make_cell):
    """A cell that runs v1 or v2, by default unless it is asked for."""

    def make(name: str, version: str, *, asked: bool = False, **axes: str):
        whole = make_cell(name)
        requested = {**whole.start.requested, "spec_version": version if asked else "auto"}
        reasons = () if asked else (V1 if version == "v1" else V2,)
        values = {**whole.axes, "spec_version": version if asked else "auto", **axes}
        resolved = {**whole.start.resolved, "spec_version": version}
        return make_cell(name, requested=requested, resolved=resolved, reasons=reasons, axes=values)

    return make


def test_a_default_that_moves_leaves_its_path_without_cells(against, cell):
    asked = cell("asked", "v1", asked=True)
    comparison = against([cell("a", "v1"), asked], [cell("a", "v2"), asked])
    (left,) = comparison.left
    assert (left.axis, left.value, left.gone) == ("spec_version", "v1", True)
    assert (left.cells, left.asked) == (("a",), ("asked",))
    assert ("batch", "mixed_lengths") in left.values and "spec_version" not in dict(left.values)
    sentence = "no cell runs spec_version=v1 by default any more (1 did); 1 cell requests it, such as asked"
    assert left.sentence == sentence


def test_what_another_cell_still_reaches_by_default_is_not_left(against, cell):
    steady = cell("steady", "v1", batch="pair")
    comparison = against([cell("a", "v1"), steady], [cell("a", "v2"), steady])
    assert comparison.left == (LeftDefault("spec_version", "v1", (("batch", "mixed_lengths"),), ("a",), (), False),)
    assert comparison.left[0].sentence == (
        "no cell runs spec_version=v1 by default with batch=mixed_lengths any more (1 did); none requests it"
    )
    steady = cell("steady", "v1")
    assert against([cell("a", "v1"), steady], [cell("a", "v2"), steady]).left == ()


def test_a_red_cell_reaches_nothing(against, cell, change_cell):
    steady = cell("steady", "v1")
    broken = change_cell(steady, state="FAIL", gates=(), error="it crashed")
    (left,) = against([cell("a", "v1"), steady], [cell("a", "v2"), broken]).left
    assert left.gone


def test_a_default_that_stays_leaves_nothing(against, cell):
    assert against([cell("a", "v1")], [cell("a", "v1")]).left == ()
    other = [cell("a", "v1"), cell("b", "v1")]
    assert against(other, other[:1]).left == (), "a lost cell is LOST, no changed default"


def test_another_reason_for_the_same_value_leaves_nothing(against, cell, change_cell):
    other = ReasonRecord("spec_version", "v1", "v1 is enough")
    head = change_cell(cell("a", "v1"), state="FAIL", gates=(), error="it crashed", reasons=(other,))
    assert against([cell("a", "v1")], [head]).left == ()


def test_every_form_of_the_comparison_says_it(against, cell):
    comparison = against([cell("a", "v1")], [cell("a", "v2")])
    (sentence,) = [left.sentence for left in comparison.left]
    for text in (printed(print_comparison, comparison), comparison_markdown(comparison), comparison_page(comparison)):
        assert sentence in html.unescape(text).replace("\\", "")
