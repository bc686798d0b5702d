"""Pairs of effective values gained and lost, with their causes."""

import random
from itertools import combinations

import pytest

from specmatrix.reports.compare import compare
from specmatrix.reports.compare.coverage import carried
from specmatrix.reports.schema import ReasonRecord
from specmatrix.reports.store import load

FALLBACK = "trees fall back"


@pytest.fixture
def sized(make_cell):
    """A cell that requests `topk` and no spec version, and runs `version`."""

    def make(name, topk, version, state="PASS", page="1", why=FALLBACK, **changes: object):
        axes = {"topk": str(topk), "spec_version": "auto", "page_size": page}
        resolved = {"topk": topk, "spec_version": version, "page_size": int(page)}
        reasons = (ReasonRecord("spec_version", version, why if version == "v1" else "by default"),)
        return make_cell(name, state=state, axes=axes, resolved=resolved, reasons=reasons, **changes)

    return make


@pytest.fixture
def coverage(tmp_path, write_report):
    def run(base, head):
        sides = (("base", base), ("head", head))
        return compare(*(load(write_report(tmp_path / name, cells)) for name, cells in sides)).coverage

    return run


def pair(**values: str):
    return tuple(sorted(values.items()))


def test_a_silent_fallback_loses_and_gains_pairs_with_its_reason(coverage, sized):
    chain = sized("chain", 1, "v2")
    base = [chain, *(sized(f"tree{index}", 4, "v2") for index in range(3))]
    head = [chain, *(sized(f"tree{index}", 4, "v1") for index in range(3))]
    change = coverage(base, head)
    assert [(row.cause, row.pairs, row.only_carrier) for row in change.lost] == [
        (f"3 cells resolve now to spec_version=v1: {FALLBACK}", (pair(spec_version="v2", topk="4"),), ())
    ]
    pairs = {pair(spec_version="v1", topk="4"), pair(page_size="1", spec_version="v1")}
    assert [(row.cause, set(row.pairs)) for row in change.gained] == [(change.lost[0].cause, pairs)]


def test_several_causes_are_one_short_sentence_without_their_reasons(coverage, sized):
    base = [sized("a", 4, "v2"), sized("b", 4, "v2"), sized("c", 1, "v2")]
    head = [sized("a", 4, "v1"), sized("b", 4, "v2", state="FAIL"), sized("c", 1, "v2")]
    (row,) = coverage(base, head).lost
    assert row.cause == "2 cells are FAIL in head or resolve now to spec_version=v1"
    both = coverage([sized("a", 4, "v2", page="1")], [sized("a", 2, "v1", page="1")])
    assert {row.cause for row in both.lost if pair(spec_version="v2", topk="4") in row.pairs} == {
        "1 cell resolves now to spec_version=v1 or topk=2"
    }


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 200])
def test_pairs_and_their_cells_are_those_of_a_count_by_cell(count):
    """Some cells lack an axis."""
    draw, axes = random.Random(count), {"topk": "1248", "page": "16", "version": "12", "batch": "abc"}
    rows = ({axis: draw.choice(values) for axis, values in axes.items()} for _ in range(count))
    cells = [{axis: value for axis, value in row.items() if draw.random() < 0.9} for row in rows]
    expected = {}
    for place, values in enumerate(cells):
        for pair in combinations(sorted(values.items()), 2):
            expected[pair] = expected.get(pair, 0) | 1 << place
    assert carried(cells) == expected


@pytest.mark.parametrize("place", [0, 1, 7, 8, 12])
def test_a_pair_is_found_wherever_the_cell_stands_that_still_carries_it(coverage, sized, place):
    others = [sized(f"other{index}", 1, "v1") for index in range(12)]
    kept = [*others[:place], sized("keeper", 4, "v2"), *others[place:]]
    assert not coverage([sized("loser", 4, "v2"), *kept], [sized("loser", 4, "v1"), *kept]).lost
    lost = coverage([*others, sized("loser", 4, "v2")], [*others, sized("loser", 4, "v1")]).lost
    assert pair(spec_version="v2", topk="4") in lost[0].pairs and lost[0].cells == ("loser",)


def test_a_requested_pair_is_searched_in_the_cells_axes(coverage, make_cell):
    """A cell's workload is only in its axes; all cells share the start."""

    def cell(name, batch, sampling, state="PASS"):
        return make_cell(name, state=state, axes={"batch": batch, "sampling": sampling}, resolved={"topk": 4})

    rest = [cell("b", "pair", "mixed"), cell("c", "single", "greedy")]
    change = coverage([cell("a", "pair", "greedy"), *rest], [cell("a", "pair", "greedy", "FAIL"), *rest])
    assert [row.pairs for row in change.lost] == [(pair(batch="pair", sampling="greedy"),)]
    rest = [*rest, cell("d", "pair", "Greedy")]
    change = coverage([cell("a", "pair", "greedy"), *rest], [cell("a", "pair", "greedy", "FAIL"), *rest])
    assert not change.lost, "other forms of the same value count as it"


def test_a_red_cell_does_not_keep_a_pair(coverage, sized):
    red = sized("red", 4, "v2", state="FAIL")
    assert coverage([red, sized("tree", 4, "v2")], [red, sized("tree", 4, "v1")]).lost[0].cells == ("tree",)


def test_the_only_carrier_is_marked(coverage, sized):
    change = coverage([sized("a", 4, "v2", page="16"), sized("b", 4, "v2")], [sized("b", 4, "v2")])
    assert change.lost[0].cause == "1 cell is not in head"
    assert set(change.lost[0].only_carrier) == {pair(page_size="16", topk="4"), pair(page_size="16", spec_version="v2")}


def test_cells_that_turned_red_cover_nothing(coverage, sized):
    change = coverage([sized("a", 4, "v2")], [sized("a", 4, "v2", state="FAIL")])
    assert change.lost[0].cause == "1 cell is FAIL in head"
    back = coverage([sized("a", 4, "v2", state="FAIL")], [sized("a", 4, "v2")])
    assert back.gained[0].cause == "1 cell is PASS in head and FAIL in base"


def test_refused_cells_cover_nothing(coverage, sized, make_cell):
    refused = make_cell("a", resolved=None, axes=dict(sized("a", 4, "v2").axes))
    assert coverage([sized("a", 4, "v2")], [refused]).lost[0].cause == "1 cell is refused in head"
    assert coverage([refused], [sized("a", 4, "v2")]).gained[0].cause == "1 cell is refused in base"


def test_new_cells_gain_pairs(coverage, sized):
    change = coverage([sized("a", 1, "v2")], [sized("a", 1, "v2"), sized("b", 4, "v2"), sized("c", 4, "v2")])
    assert [row.cause for row in change.gained] == ["2 cells are new in head"]


def test_every_lost_pair_is_really_lost(tmp_path, specimen, write_report):
    """Against a brute-force count over all cells of the example report."""

    base = load(write_report(tmp_path / "base", specimen()))
    head = load(write_report(tmp_path / "head", specimen(policy="v1", stride=True)[9:]))

    def carried(report):
        rows = (sorted((report.effective(cell) or {}).items()) for cell in report.lines)
        return {pair for row in rows for pair in combinations(row, 2)}

    change = compare(base, head).coverage
    assert {found for row in change.lost for found in row.pairs} == carried(base) - carried(head)
    assert {found for row in change.gained for found in row.pairs} == carried(head) - carried(base)


def test_a_number_that_became_a_switch_is_a_different_value(make_cell, coverage):
    change = coverage(*([make_cell("a", resolved={"topk": topk, "spec_version": "v2"})] for topk in (1, True)))
    for rows, value in ((change.lost, "1"), (change.gained, "on")):
        assert {value for row in rows for pair in row.pairs for axis, value in pair if axis == "topk"} == {value}
