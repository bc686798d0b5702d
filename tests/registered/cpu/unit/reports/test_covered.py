"""Counts of pairs and triples against a count cell by cell."""

import random
from itertools import combinations

import pytest

from specmatrix.reports.covered import Coverage, covered, holders
from specmatrix.reports.schema import GateResult
from specmatrix.reports.store import load


def test_holders_number_the_cells_from_the_lowest_bit():
    assert holders([{"a": "1"}, {"a": "2"}, {"a": "1", "b": "x"}]) == {("a", "1"): 5, ("a", "2"): 2, ("b", "x"): 4}


def by_hand(rows, size):
    return len({subset for row in rows for subset in combinations(sorted(row.items()), size)})


@pytest.mark.parametrize("count", [1, 9, 60])
def test_pairs_and_triples_are_those_of_a_count_by_cell(tmp_path, make_cell, write_report, count):
    draw = random.Random(count)
    axes = {"algorithm": ("none", "eagle3"), "topk": "1248", "batch": ("single", "pair"), "abort": ("none", "queued")}
    asked = [{axis: draw.choice(values) for axis, values in axes.items()} for _ in range(count)]
    ran = [{"algorithm": row["algorithm"].upper(), "topk": min(2, int(row["topk"]))} for row in asked]
    cells = [make_cell(f"c{i}", axes=row, resolved=got) for i, (row, got) in enumerate(zip(asked, ran, strict=True))]
    effective = [row | {"topk": str(got["topk"])} for row, got in zip(asked, ran, strict=True)]
    found = covered(load(write_report(tmp_path, cells)))
    assert (found.requested_pairs, found.requested_triples) == (by_hand(asked, 2), by_hand(asked, 3))
    assert (found.passing_pairs, found.passing_triples) == (by_hand(effective, 2), by_hand(effective, 3))


def test_only_green_cells_that_ran_prove_a_combination(tmp_path, make_cell, write_report):
    axes = [{"topk": str(k), "batch": "single", "abort": "none"} for k in range(4)]
    cells = [
        make_cell("green", axes=axes[0], resolved={"topk": 0}),
        make_cell("red", axes=axes[1], resolved={"topk": 1}, state="FAIL"),
        make_cell("refused", axes=axes[2], resolved=None, expect="refused", gates=(GateResult("config", "PASS"),)),
        make_cell("unmeasured", axes=axes[3], resolved={"topk": 3}, state="NOT MEASURED"),
    ]
    found = covered(load(write_report(tmp_path, cells)))
    # (batch, abort) once; (topk, batch) and (topk, abort) for each asked topk, and for the one that ran green.
    assert found == Coverage(requested_pairs=9, requested_triples=4, passing_pairs=3, passing_triples=1)
    assert found.message == "requested coverage: 9 pairs, 4 triples; covered by passing cells: 3 and 1"
