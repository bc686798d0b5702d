"""Log-probabilities against the baseline's: what is compared, and what counts as a difference."""

import pytest

from specmatrix.matrix.gates.logprobs import max_logprob_gap
from specmatrix.matrix.gates.pairing import AnswerPair
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.request import RequestSpec

ASK = RequestSpec("q0", "Why?", 3)
TOP = (((5, -0.1), (6, -0.5)), ((6, -0.2), (5, -0.3)), ((7, -0.4), (8, -0.9)))


def answer(ids=(5, 6, 7), logprobs=(-0.1, -0.2, -0.4), top=TOP):
    return Answer("q0", (1,), ids, "", "length", None, 0, (), logprobs=logprobs, top_logprobs=top)


def measure(mine, theirs=None):
    return max_logprob_gap(AnswerPair(ASK, mine, answer() if theirs is None else theirs))


def test_equal_ones_are_not_apart_and_those_that_one_side_lacks_are_not_counted():
    assert measure(answer()) == (3, 0.0)
    assert measure(answer(logprobs=(), top=())) == (0, 0.0)
    assert measure(answer(top=()), answer(logprobs=(-0.1,), top=())) == (1, 0.0)
    assert measure(answer(top=((), *TOP[1:]))) == measure(answer(), answer(top=((), *TOP[1:]))) == (3, 0.0)
    # A baseline shows two alternatives where one was asked.
    assert measure(answer(top=tuple(column[:1] for column in TOP))) == (3, 0.0)


def test_the_largest_difference_counts_of_a_token_or_an_alternative():
    assert measure(answer(logprobs=(-0.1, -0.25, -0.4)))[1] == pytest.approx(0.05)
    assert measure(answer(top=(TOP[0], TOP[1], ((7, -0.4), (8, -1.0)))))[1] == pytest.approx(0.1)


def test_an_alternative_that_is_none_of_the_baselines_is_held_to_its_last_one():
    tied = answer(top=(TOP[0], TOP[1], ((7, -0.4), (9, -0.9))))
    other = answer(top=(TOP[0], TOP[1], ((7, -0.4), (9, -0.5))))
    assert measure(tied)[1] == 0.0 and measure(other)[1] == pytest.approx(0.4)


def test_nothing_is_compared_after_the_first_different_token():
    assert measure(answer(ids=(5, 9, 7), logprobs=(-0.1, -7.0, -8.0))) == (1, 0.0)
    assert measure(answer(ids=(5,), logprobs=(-0.1,), top=TOP[:1])) == (1, 0.0)
