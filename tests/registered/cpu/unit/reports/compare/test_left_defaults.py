"""A comparison names what cells ran by a default that changed, and what no cell reaches by a default any more."""

import html

import pytest

from specmatrix.reports.compare.cell_state import LeftDefault
from specmatrix.reports.render.comparison import comparison_markdown, comparison_page
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.schema import ReasonRecord

from ..conftest import printed

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
