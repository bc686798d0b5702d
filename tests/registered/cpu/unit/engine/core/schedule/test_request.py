"""Phases follow the transition table, and every error of a sampling parameter."""

from __future__ import annotations

import itertools
import re

import pytest

from specmatrix.engine.core.schedule.request import Phase, Request, SamplingParams, shown
from specmatrix.errors import LedgerError, RequestError
from tests.support.tables import table

LEGAL = {
    ("waiting", "running"),
    ("waiting", "done"),
    ("running", "draining"),
    ("draining", "done"),
    ("draining", "waiting"),
}

HEAT = "0, or a number from 2**-126 to 2**126"
BIAS = "a dict from token ids in [0, 50) to numbers from -100 to 100"
WORDS = "a list of lists of token ids in [0, 50), none empty"
ALLOWED_IDS = "a list of 1 to 50 token ids in [0, 50)"
TOP_K = "-1 (off), or an integer in [1, 2**63)"


def request(**values: object) -> Request:
    return Request(7, (1, 2, 3), SamplingParams(), 0, **values)


@pytest.mark.parametrize(("now", "to"), list(itertools.product(Phase, Phase)))
def test_only_listed_moves_are_made(now, to):
    moved = request(phase=now)
    if (now.value, to.value) in LEGAL:
        moved.move(to)
        assert moved.phase is to
    else:
        with pytest.raises(LedgerError, match=f"^request 7 cannot move from {now.value} to {to.value}$"):
            moved.move(to)
        assert moved.phase is now


@pytest.mark.parametrize(
    ("phase", "prefilled", "decoding"),
    [(Phase.RUNNING, 3, True), (Phase.RUNNING, 2, False), (Phase.DRAINING, 3, False), (Phase.WAITING, 3, False)],
)
def test_decoding_needs_a_whole_prefill(phase, prefilled, decoding):
    made = request(phase=phase, prefilled=prefilled, prefill_target=3)
    assert made.decoding is decoding and made.text == ""


# Of each parameter what is allowed, and values outside of it or of another type.
REFUSED: dict[str, tuple[str, list[object]]] = {
    "max_new_tokens": ("an integer in [1, 2**63)", [0, 2.5, True]),
    "temperature": (HEAT, [-0.1, 1e-40, 2.0**126 * 1.01, 10**400, float("inf"), float("nan"), "x", False]),
    "top_k": (TOP_K, [0, -2, 2**63, 1.5, True]),
    "top_p": ("above 0 and at most 1", [0.0, 1.5, float("nan"), None]),
    "seed": ("an integer in [0, 2**63)", [-1, 2**63, 1.0]),
    "stop": ("a list of texts, none empty", [("x", ""), ("x", "\ud800"), "ab", (1,)]),
    "stop_token_ids": ("a list of token ids in [0, 50)", [(3, 50), (-1,), 3, (1.0,)]),
    "top_logprobs_num": ("an integer in [0, 50]", [-1, 51, None]),
    "min_new_tokens": ("an integer in [0, 2**63)", [-1, 1.0]),
    "min_p": ("a number from 0 to 1", [1.01, float("nan"), True]),
    "presence_penalty": ("a number from -2 to 2", [-2.1, float("nan"), None]),
    "frequency_penalty": ("a number from -2 to 2", [2.1, float("inf"), "1"]),
    "repetition_penalty": ("a number from 0.01 to 2", [0, float("nan"), True]),
    "logit_bias": (BIAS, [{50: 1.0}, {3: 100.1}, {3: float("nan")}, [(3, 1.0)], {"3": 1.0}, {3: True}]),
    "bad_words_ids": (WORDS, [((1, 50),), ((),), ((1.0,),), (3,)]),
    "allowed_token_ids": (ALLOWED_IDS, [(), (-1,), 3]),
    "n": ("an integer in [1, 1024]", [0, 1025, 2.0]),
    "logprob_start_len": ("-1 (off), or an integer in [0, 2**63)", [-2, False]),
    "ignore_eos": ("true or false", [1]),
    "return_logprob": ("true or false", ["yes"]),
    "no_stop_trim": ("true or false", [1]),
    **{kind: ("a text, or None", [{}, b"a", "\ud800"]) for kind in ("json_schema", "regex", "ebnf", "structural_tag")},
    "reasoning_end_ids": ("up to 32 ids in [0, 50)", [(50,), 3, (5,) * 33]),
}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [(name, value, allowed) for name, (allowed, values) in REFUSED.items() for value in values],
)
def test_a_parameter_outside_its_range_is_named_with_what_is_allowed(name, value, allowed):
    with pytest.raises(RequestError, match=f"^{re.escape(f'{name} is {shown(value)}; allowed: {allowed}')}$"):
        SamplingParams(**{name: value}).validate(50)


@pytest.mark.parametrize(
    "values",
    [
        *table(__file__)["edges"],
        {"seed": 2**63 - 1},
        {"temperature": 2.0**-126, "top_k": 2**63 - 1},
        {"temperature": 2**126, "top_p": 5e-324},
    ],
)
def test_the_edges_of_every_range_are_allowed(values):
    SamplingParams(**values).validate(50)


def test_an_output_cannot_be_longer_than_its_limit():
    with pytest.raises(RequestError, match=r"^min_new_tokens is 4; allowed: at most max_new_tokens, 3$"):
        SamplingParams(max_new_tokens=3, min_new_tokens=4).validate(50)


@pytest.mark.parametrize(
    "values",
    [
        {"allowed_token_ids": (4,), "bad_words_ids": ((4,),)},
        {"allowed_token_ids": (4, 5), "bad_words_ids": ((1, 4), (5,))},
        {"allowed_token_ids": (4, 49), "min_new_tokens": 1, "stop_token_ids": (4,)},
        {"bad_words_ids": [[token] for token in range(50)]},
    ],
)
def test_bans_must_leave_a_token(values):
    why = "bad_words_ids and the stop tokens before min_new_tokens could ban every allowed token at once; allowed: "
    with pytest.raises(RequestError, match=f"^{why}at least one token that they never ban$"):
        SamplingParams(**values).validate(50, frozenset({49}))


def test_a_request_has_one_grammar_and_reasoning_only_before_it():
    one = "json_schema, regex, ebnf, structural_tag"
    with pytest.raises(RequestError, match=f"^regex and ebnf are given; allowed: one of {one}$"):
        SamplingParams(regex="a", ebnf="b").validate(50, frozenset({1}))
    with pytest.raises(RequestError, match=rf"^reasoning_end_ids is \(3,\) without a grammar; .* one of {one}$"):
        SamplingParams(reasoning_end_ids=(3,)).validate(50, frozenset({1}))
    with pytest.raises(RequestError, match=r"^regex has 0 characters"):
        SamplingParams(regex="").validate(50, frozenset({1}))
    with pytest.raises(RequestError, match=r"^regex is given; allowed: none, as the model has no token that ends a te"):
        SamplingParams(regex="a").validate(50)


def test_a_token_that_is_never_banned_is_enough():
    left = SamplingParams(allowed_token_ids=(4, 5, 49), bad_words_ids=((4,),), min_new_tokens=1)
    left.validate(50, frozenset({49}))


def test_a_number_too_long_to_write_is_refused_too():
    with pytest.raises(RequestError, match=r"^top_k is an integer of thousands of digits; allowed: -1"):
        SamplingParams(top_k=10**5000).validate(50)


def test_what_parameters_imply():
    assert SamplingParams().greedy and not SamplingParams(temperature=0.1).greedy
    assert not SamplingParams().wants_logprobs and not SamplingParams().adjusts
    assert SamplingParams(return_logprob=True).wants_logprobs and SamplingParams(top_logprobs_num=1).wants_logprobs
