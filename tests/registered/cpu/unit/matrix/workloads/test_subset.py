"""Fewer and shorter requests of a workload."""

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import repro
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.subset import Subset, needed, subset
from tests.support.refusals import refusal

RAGGED = Cell.from_id("eagle3.mixed_lengths")


def names(cell: Cell, *requests: str, tokens: int | None = None) -> list[str]:
    return [request.name for request in Subset(requests, tokens)(cell, 0)]


def test_everything_is_the_whole_workload():
    assert Subset()(RAGGED, 0) == workload(RAGGED, 0)


def test_named_requests_keep_their_order_and_what_they_wait_for():
    assert names(RAGGED, "q7", "q5") == ["q5", "q7"]
    for cell in (Cell.from_id("eagle3.pair.stream"), Cell.from_id("eagle3.pair.branch"), Cell.from_id("eagle3.ramp")):
        whole = workload(cell, 0)
        last = whole[-1]
        kept = names(cell, last.name)
        by_name = {request.name: request for request in whole}
        assert last.name in kept and all(name in kept for one in kept for name in needed(by_name[one]))
        assert needed(last) and len(kept) <= len(whole)


def test_tokens_limit_every_request():
    requests = Subset(tokens=3)(Cell.from_id("eagle3.mixed_lengths.stops"), 0)
    assert {request.max_new_tokens for request in requests} == {3}
    assert all(request.min_new_tokens <= 3 for request in requests)
    whole = workload(RAGGED, 0)
    assert [one.max_new_tokens for one in Subset(tokens=70)(RAGGED, 0)] == [
        min(70, one.max_new_tokens) for one in whole
    ]


@pytest.mark.parametrize(
    ("requests", "tokens", "sentence"),
    [
        ("q5,,q6", None, "requests 'q5,,q6' has an empty name; write names with commas, such as q6,q7"),
        ("", None, "requests '' has an empty name; write names with commas, such as q6,q7"),
        (None, 0, "tokens must be at least 1, got 0"),
        (None, -(2**70), f"tokens must be at least 1, got -{2**70}"),
    ],
)
def test_bad_options_are_refused(requests, tokens, sentence: str):
    assert refusal(subset, requests, tokens) == sentence


def test_an_unknown_request_is_refused_with_the_known_ones():
    text = "cell eagle3.mixed_lengths has no request 'q99'; it has q5, q6, q7, q10, q5.again"
    assert refusal(names, RAGGED, "q99") == text


def test_options_are_those_of_the_command_that_runs_it_again():
    found = subset("q5, q6", 3)
    assert found is not None and found.options == "--requests q5,q6 --tokens 3"
    assert subset(None, None) is None and Subset().options == ""
    assert "--cells 'none' --requests q5,q6 --tokens 3 --seed 0" in repro("none", "cpu", 0, options=found.options)
