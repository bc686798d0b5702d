"""Rounds behind the same text are compared between requests and cells."""

import pytest
from msgspec.structs import replace

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.same_texts import SameTexts, rounds_of
from specmatrix.matrix.run.runner import reference_runner
from specmatrix.matrix.subjects.protocol import Answer


@pytest.mark.parametrize(
    ("tokens", "rounds", "retractions", "place"),
    [
        ((1, 2, 3, 4, 5, 6, 7), (2, 3, 9), 0, None),
        ((1, 2, 3, 4, 5, 6, 7), (2, 1, 2, 9), 0, 2),
        ((1, 2, 3, 4, 5, 6, 7), (3, 1, 2), 1, None),  # a prefill gave a token outside of any round
        ((1, 2, 3, 8, 5, 6, 7), (2, 1, 2, 9), 0, None),  # another token in the second round
        ((1, 2, 3), (2,), 0, None),  # its only round may be cut
    ],
)
def test_a_prompt_that_returns_accepts_what_it_did_first(tokens, rounds, retractions, place):
    texts = SameTexts()
    first = Answer("a", (7,), (1, 2, 3, 4, 5, 6, 7), "", "stop", None, 0, (2, 3, 1))
    again = Answer("c", (7,), tokens, "", "stop", None, 0, rounds, retractions=retractions)
    for drafts, one in (("x", first), ("x", first), ("y", again)):
        assert not texts.apart("one", [(one.name, rounds_of([drafts] * 9, one))])
    found = texts.apart("two", [("c", rounds_of(["x"] * 9, again))])
    assert [(one.request, one.round) for one in found] == ([] if place is None else [("c", place)])
    assert not texts.apart("three", [("e", rounds_of(["x"] * 9, again))]), "one of the two is enough"


def test_a_cell_with_other_rounds_than_an_earlier_one_is_red():
    runner, texts = reference_runner(0), SameTexts()
    first, pages = (runner.run_cell(Cell.from_id(f"eagle3.s3.pair{more}")) for more in ("", ".p16"))
    assert texts.judged(first).state == "PASS" and texts.judged(pages) == pages
    gate = first.gate("acceptance")
    (name, ((text, tokens), *_)), *_ = gate.numbers["same_texts"]
    cut = replace(gate, numbers={"same_texts": [(name, [(text, tokens[:-1])])]})
    red = texts.judged(replace(first, gates=(cut,)), last=True)
    assert (red.state, red.first_red.round, red.gates[0].numbers) == ("FAIL", 1, {})
