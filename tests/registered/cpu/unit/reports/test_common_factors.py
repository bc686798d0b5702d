"""What failing cells share and no passing cell has."""

from itertools import product

import pytest

from specmatrix.reports.common_factors import common_factors, shared

CELLS = [
    {"algorithm": a, "topk": k, "spec_version": v, "batch": b, "page_size": p}
    for a, k, v, b, p in product(("standalone", "eagle3"), "124", ("v1", "v2"), ("1", "2", "5"), ("1", "16", "64"))
]


@pytest.mark.parametrize(
    ("red", "conditions"),
    [
        (lambda c: c["spec_version"] == "v2", ("spec_version=v2",)),
        (lambda c: c["topk"] != "1", ("topk > 1",)),
        (lambda c: c["page_size"] == "64", ("page_size=64",)),
        (lambda c: c["page_size"] != "64", ("page_size < 64",)),
        (lambda c: c["page_size"] != "16", ("page_size != 16",)),
        (
            lambda c: c["topk"] != "1" and c["spec_version"] == "v2" and c["batch"] != "1",
            ("topk > 1", "spec_version=v2", "batch > 1"),
        ),
    ],
)
def test_one_defect_is_one_factor(red, conditions):
    failing, passing = [cell for cell in CELLS if red(cell)], [cell for cell in CELLS if not red(cell)]
    assert common_factors(failing, passing) == (conditions,)


def test_axes_that_some_cells_lack():
    failing = [{"session": "on", "n": str(index % 2)} for index in range(8)]
    passing = [{"n": str(index % 2)} for index in range(20)]
    assert common_factors(failing, passing) == (("session=on",),)


def test_a_digit_that_is_no_number_is_a_word():
    rows = [{"size": size} for size in ("1", "2", "²")]
    assert common_factors([rows[2]] * 9, [*rows[:2]] * 9) == (("size=²",),)


def test_a_sentence_names_the_first_candidates_and_counts_the_others():
    factors = tuple((f"a={number}",) for number in range(5))
    text = ", all at a=0; or at a=1; or at a=2; or at 2 more, where none of 1 passing cell is"
    assert shared(factors, 2, 1) == text
