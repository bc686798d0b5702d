"""Selecting cells: stages, selectors, single ids, and the whole product."""

from itertools import islice

import pytest

from specmatrix.matrix.cells.axes import START_AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import LEFT_OUT, expect, explain
from specmatrix.matrix.cells.enumerate import Prefix
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import all_cells, is_id, select
from tests.support.refusals import refusal


def test_a_stage_is_the_lock_file_a_selector_narrows_it_and_an_id_may_be_outside():
    assert select("smoke") == stage_cells("smoke") == select("smoke", limit=2**63)
    assert len(select("nightly", limit=3)) == 3
    cells = select("pr", "algorithm=eagle3 and not memory=tight")
    assert cells == [c for c in stage_cells("pr") if c.algorithm == "eagle3" and c.memory != "tight"]
    cell = Cell.from_id("eagle3.s3.k2.n8.p16.pair.topk_topp")
    assert cell not in stage_cells("smoke")
    assert select("smoke", " eagle3.s3.k2.n8.p16.pair.topk_topp ") == [cell]
    assert [is_id(text) for text in ("none", "eagle3.p4", "", "topk=2")] == [True, True, False, False]


@pytest.mark.parametrize("text", [None, "none", "algorithm=none"])
def test_a_wrong_limit_an_unknown_stage_and_too_many_cells_are_refused(text: str | None):
    assert refusal(select, "smoke", text, 0) == "limit must be at least 1, got 0"
    if text != "none":
        message = "stage 'product' has more than 20,000 of these cells; name fewer by --cells, or give --limit"
        assert refusal(select, "product", text) == message and len(select("product", text, 20_001)) == 20_001
    known = "smoke, pr, nightly, product, speed"
    assert refusal(select, "nan", text) == f"stage 'nan' is unknown; it must be one of {known}"


def test_product_has_every_cell_that_exists_and_no_other():
    some = list(islice(all_cells(), 5000))
    assert len(set(some)) == 5000
    assert not [c for c in some if {k.kind for k in explain(c)} & LEFT_OUT]
    # Within the first start, each cell that explain lets pass is there.
    requests = {cell[len(START_AXES) :] for cell in some if cell.start_key == Cell().start_key}
    assert ("pair", "streaming", "mixed", "length", "running", "none") in requests
    assert ("single", "none", "mixed", "eos", "none", "none") not in requests
    assert ("single", "none", "rules", "eos", "none", "none") not in requests


def test_an_optional_cell_runs_where_it_is_named():
    (cell,) = select("product", "eagle3.rules")
    assert expect(cell) == "runs" and [rule.name for rule in explain(cell)] == ["few-rules-batch"]


@pytest.mark.parametrize(
    ("stage", "text", "message"),
    [
        ("nightly", "topk=2 and topk=4", "{}no cell of the lock file matches it; --stage product selects "),
        ("smoke", "algorithm=eagle3 and page_size=64", "{}--stage nightly has "),
        ("smoke", "eagle3.s2.k2.n6.v2.p64.c7.pair and batch=pair", "{}no cell of the lock file matches it; "),
        ("product", "eagle3 or eagle3.abort_queued", "cell eagle3.abort_queued is impossible (queue-empty): no "),
        ("product", "eagle3.rules or eagle3", "cell eagle3.rules of the selector is not in stage 'product'; it runs "),
        ("smoke", "standalone.pair or dflash.k2.pair", "cell dflash.k2.pair of the selector is not in stage 'smoke'; "),
        ("speed", "eagle3.s3.v1 or eagle3.p4", "cell eagle3.p4 of the selector is not in stage 'speed'; --stage prod"),
        ("smoke", "", "--cells is empty, perhaps an unset shell variable; omit it"),
        ("smoke", "  ", "--cells is empty, perhaps an unset shell variable; omit it"),
    ],
)
def test_what_selects_nothing_or_names_a_cell_outside_of_the_stage_is_refused(stage: str, text: str, message: str):
    nothing = f"selector {text!r} matches no cell of stage {stage!r}; "
    assert refusal(select, stage, text).startswith(message.format(nothing))


def test_several_named_cells_are_all_selected():
    named = ["eagle3.s3", "none.s3", "dflash.k2"]  # the second is refused, the third rewritten
    assert sorted(cell.id for cell in select("product", " or ".join(named))) == sorted(named)
    assert [cell.id for cell in select("product", "eagle3 or none", limit=1)] == ["none"]
    assert [cell.id for cell in select("product", "(eagle3 or eagle3.p4) and page_size=4")] == ["eagle3.p4"]
    assert "none" not in {cell.id for cell in select("smoke", "not (none or eagle3.rules)")}


def test_the_product_is_narrowed_value_by_value_without_losing_a_cell():
    text = "algorithm=none and model=llama and page_size=16 and overlap=off and batch in (pair, ramp) and slots=4"
    selector = parse_selector(text)
    asked: list[Prefix] = []

    def may(known: Prefix) -> bool:
        asked.append(known)
        return selector.may(known)

    some = list(islice(all_cells(may), 4000))
    assert {cell[:2] for cell in some} == {("none", "llama")}
    assert len(asked) < 500
    first = [cell for cell in islice(all_cells(), 161_000) if selector(cell)]
    assert first and [cell for cell in some if selector(cell)][: len(first)] == first
