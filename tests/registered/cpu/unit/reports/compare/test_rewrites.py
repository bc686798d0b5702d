from specmatrix.reports.compare.acknowledge import Acknowledged, Acknowledgement
from specmatrix.reports.compare.paths import PathChanges
from specmatrix.reports.compare.rewrites import choice_changes, new_rewrites, rewrite_changes, signature
from specmatrix.reports.schema import ReasonRecord, RewriteRecord

NOBODY = Acknowledged()
WHAT = "num_draft_tokens: 6 -> 4"


def changes(pairs, acknowledged=NOBODY):
    return rewrite_changes(pairs, acknowledged, PathChanges())


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
    assert new_rewrites(rewritten(), rewritten()) == ()


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
    assert rows([(lost, make_cell("a"))]) == [] and new_rewrites(lost, rewritten("a")) == ()
