import random
from itertools import product

import pytest

from specmatrix.reports.compare import common_factors

CELLS = [
    {"algorithm": a, "topk": k, "spec_version": v, "batch": b, "page_size": p}
    for a, k, v, b, p in product(("standalone", "eagle3"), "124", ("v1", "v2"), ("1", "2", "5"), ("1", "16", "64"))
]


def split(red):
    return [cell for cell in CELLS if red(cell)], [cell for cell in CELLS if not red(cell)]


@pytest.mark.parametrize(
    ("red", "conditions"),
    [
        (lambda c: c["spec_version"] == "v2", {"spec_version=v2"}),
        (lambda c: c["topk"] != "1", {"topk > 1"}),
        (lambda c: c["page_size"] == "64", {"page_size=64"}),
        (lambda c: c["page_size"] != "64", {"page_size < 64"}),
        (lambda c: c["page_size"] != "16", {"page_size != 16"}),
        (
            lambda c: c["topk"] != "1" and c["spec_version"] == "v2" and c["batch"] != "1",
            {"topk > 1", "spec_version=v2", "batch > 1"},
        ),
    ],
)
def test_one_defect_is_one_factor(red, conditions):
    failing, passing = split(red)
    factor = common_factors(failing, passing)[0]
    assert set(factor.conditions) == conditions
    assert (factor.failing, factor.failing_total) == (len(failing), len(failing))
    assert (factor.passing, factor.passing_total) == (0, len(passing))
    assert factor.p < 1e-6


def test_two_defects_are_two_factors():
    def red(cell):
        first = cell["algorithm"] == "eagle3" and cell["page_size"] == "64"
        return first or (cell["spec_version"] == "v1" and cell["batch"] == "5")

    found = common_factors(*split(red))
    expected = {("algorithm=eagle3", "page_size=64"), ("spec_version=v1", "batch=5")}
    assert {factor.conditions for factor in found} == expected


def test_a_factor_need_not_be_perfect():
    """Two passing cells inside, one red cell outside."""
    failing, passing = split(lambda c: c["page_size"] == "64")
    factor = common_factors([*failing[2:], passing[0]], [*passing[1:], *failing[:2]])[0]
    assert factor.conditions == ("page_size=64",)
    assert (factor.failing, factor.failing_total, factor.passing) == (34, 35, 2)


def test_failures_without_a_pattern_have_no_factor():
    red = set(random.Random(1).sample(range(len(CELLS)), 12))
    failing = [CELLS[index] for index in red]
    assert common_factors(failing, [cell for index, cell in enumerate(CELLS) if index not in red]) == ()


@pytest.mark.parametrize(("failing", "passing"), [([], []), ([], CELLS), (CELLS, []), (CELLS[:1], CELLS[1:30])])
def test_too_little_evidence_has_no_factor(failing, passing):
    assert common_factors(failing, passing) == ()


def test_axes_that_some_cells_lack():
    failing = [{"session": "on", "n": str(index % 2)} for index in range(8)]
    passing = [{"n": str(index % 2)} for index in range(20)]
    assert common_factors(failing, passing)[0].conditions == ("session=on",)


def test_many_cells_are_distinguished():
    """The p values of all candidates are far below the smallest float here."""
    failing, passing = split(lambda c: c["page_size"] == "64" and c["batch"] == "5" and c["spec_version"] == "v2")
    factor = common_factors(failing * 200, passing * 200)[0]
    assert factor.conditions == ("spec_version=v2", "batch=5", "page_size=64")
    assert (factor.failing, factor.passing) == (len(failing) * 200, 0)


def test_a_digit_that_is_no_number_is_a_word():
    rows = [{"size": size} for size in ("1", "2", "²")]
    factors = common_factors([rows[2]] * 9, [*rows[:2]] * 9)
    assert [factor.conditions for factor in factors] == [("size=²",)]
