"""Groups of equal failures, and what their cells have in common and no green cell has."""

from itertools import product

import pytest

from specmatrix.reports.groups import common_factors, kind_of, meets, red_groups, shared
from specmatrix.reports.render.run import run_markdown, run_page, view
from specmatrix.reports.schema import Cause, GateResult
from specmatrix.reports.store import load


def axes(text: str) -> dict[str, str]:
    return dict(zip(("algorithm", "topk", "batch"), text.split(), strict=True))


def test_the_shortest_conjunctions_that_no_passing_cell_meets_are_the_candidates():
    failing = [axes("eagle3 4 mixed_lengths")]
    passing = [axes("eagle3 4 single"), axes("eagle3 1 mixed_lengths"), axes("none 4 mixed_lengths")]
    assert common_factors(failing, passing) == (("algorithm=eagle3", "topk=4", "batch=mixed_lengths"),)
    assert common_factors(failing, passing[1:]) == (("algorithm=eagle3", "topk=4"),)
    assert common_factors(failing, passing[:1]) == (("batch=mixed_lengths",),)
    assert common_factors(failing, [axes("eagle3 1 single")]) == (("topk=4",), ("batch=mixed_lengths",))


def test_values_that_failing_cells_do_not_share_are_told_by_what_they_exclude():
    failing, passing = (
        [axes("eagle3 2 mixed_lengths"), axes("eagle3 4 pair")],
        [axes("eagle3 1 mixed_lengths"), axes("eagle3 4 single")],
    )
    assert common_factors(failing, passing) == (("topk > 1", "batch != single"),)


def test_of_conditions_on_an_axis_the_one_that_fewer_cells_meet_is_given():
    failing = [axes("eagle3 2 mixed_lengths"), axes("eagle3 4 pair")]
    passing = [axes("eagle3 1 mixed_lengths"), axes("eagle3 4 single"), axes("eagle3 0 single")]
    assert common_factors(failing, passing) == (("topk > 1", "batch != single"),), "and not topk != 1 too"


@pytest.mark.parametrize(
    ("failing", "passing"), [([], ["none 1 pair"]), (["none 1 pair"], []), (["none 1 pair"], ["none 1 pair"])]
)
def test_nothing_to_compare_has_no_factor(failing, passing):
    assert common_factors([*map(axes, failing)], [*map(axes, passing)]) == ()


def red(make_cell, name: str, values: str, message: str):
    gates = (GateResult("lossless", "FAIL", message=message),)
    return make_cell(name, gates=gates, axes=axes(values), resolved=None)


def reds(make_cell) -> list:
    return [
        red(make_cell, "a", "eagle3 4 mixed_lengths", "3 of 5 requests differ, first q6 at token 2: 79 not 340"),
        red(make_cell, "b", "eagle3 4 pair", "1 of 2 requests differ, first q12.x at token 40: 1 not 2 under top_p"),
        red(make_cell, "c", "none 1 mixed_lengths", "a log-probability differs by 0.02 nats"),
    ]


def green(make_cell) -> list:
    return [make_cell("d", axes=axes("eagle3 1 mixed_lengths"), resolved=None)]


def test_equal_failures_are_one_group_whatever_their_names_and_numbers(make_cell):
    groups = red_groups(reds(make_cell)[::-1], green(make_cell))
    assert [[cell.id for cell in group.cells] for group in groups] == [["b", "a"], ["c"]]
    assert groups[0].text == "2 red cells with lossless FAIL, all at topk=4, where none of 1 passing cell is"
    assert groups[1].text == "1 red cell with lossless FAIL, at algorithm=none, where none of 1 passing cell is"


def test_known_causes_stand_in_place_of_candidates(make_cell):
    [group] = red_groups(reds(make_cell)[:1], green(make_cell), {"a": Cause((("topk=4",),), 9, 7)})
    assert group.factors == (("topk=4",),)
    assert group.text.endswith("at topk=4, where none of 8 passing cells is (9 more cells ran to tell causes apart)")


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("topk=4", True), ("topk=2", False), ("topk != 1", True), ("topk != 4", False), ("topk > 2", True),
        ("topk > 4", False), ("topk < 16", True), ("topk < 4", False), ("batch=mixed_lengths", True),
        ("batch > 1", False),
        ("steps=3", False), ("steps > 3", False),
    ],
)  # fmt: skip
def test_a_condition_holds_of_values(condition: str, met: bool):
    assert meets(condition, axes("eagle3 4 mixed_lengths")) is met


def test_errors_and_states_differ_in_kind(make_cell):
    crash = make_cell("e", state="INFRA", error="KeyError: 'q6', in step (loop.py:120)")
    other = make_cell("f", state="INFRA", error="KeyError: 'q7', in step (loop.py:121)")
    assert kind_of(crash) == kind_of(other) != kind_of(make_cell("g", state="INFRA", error="it hung"))


def test_every_output_tells_the_groups(make_cell, write_report, tmp_path):
    run = view(load(write_report(tmp_path, [*reds(make_cell), *green(make_cell)])))
    assert "2 red cells with lossless FAIL, all at topk=4" in run_markdown(run)
    assert "2 red cells with lossless FAIL, all at topk=4" in run_page(run)
    assert run.examples == {"a", "c"}


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
