"""The finish, token by token: stop token, stop string, length, in this order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.schedule.request import Finish, OutputText, SamplingParams, StopRules, stable_text_length
from tests.support.tables import table

WORDS = ("a", "b", "ab", "ba", "abc", "", "cc", "bcab")


class WordDecoder:
    """Token -> word."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, tokens):
        self.text += "".join(WORDS[token] for token in tokens)
        return self.text


def deliver(words, params, eos=frozenset()):
    """Hand a whole accepted run to the rules as the loop does. Returns (tokens kept, text, finish)."""
    rules, transcript = StopRules.of(params, eos), OutputText(WordDecoder())
    for count, token in enumerate(words, 1):
        finish = rules.judge(token, count, transcript)
        if finish is not None:
            return count, transcript.read(), finish
    return len(words), transcript.read(), None


def naive(words, params, eos=frozenset()):
    """The same computed from whole prefixes: the first that ends, and its reason."""
    ids = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
    for count in range(1, len(words) + 1):
        text = "".join(WORDS[t] for t in words[:count])
        if words[count - 1] in ids:
            kept = words[: count - (not params.no_stop_trim)]
            return count, "".join(WORDS[t] for t in kept), Finish("stop", words[count - 1])
        places = sorted((text.find(s), -len(s), s) for s in params.stop if s in text)
        if places:
            start, size, stop = places[0]
            return count, text[: start - size * params.no_stop_trim], Finish("stop", stop)
        if count == params.max_new_tokens:
            return count, text, Finish("length")
    return len(words), "".join(WORDS[t] for t in words), None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    words=st.lists(st.integers(0, len(WORDS) - 1), max_size=9),
    limit=st.integers(1, 10),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    ids=st.lists(st.integers(0, len(WORDS) - 1), max_size=1),
    ignore=st.booleans(),
    eos=st.sets(st.integers(0, len(WORDS) - 1), max_size=1),
    keep=st.booleans(),
)
def test_equals_judging_whole_prefixes(words, limit, stop, ids, ignore, eos, keep):
    params = SamplingParams(limit, stop=tuple(stop), stop_token_ids=tuple(ids), ignore_eos=ignore, no_stop_trim=keep)
    assert deliver(words, params, frozenset(eos)) == naive(words, params, frozenset(eos))


def test_a_stop_inside_a_run_that_crosses_the_limit_is_a_stop():
    """sglang#33758: the run is 4 tokens, the limit 3, the stop the second."""
    for params in (
        SamplingParams(max_new_tokens=3, stop=("b",)),
        SamplingParams(max_new_tokens=3, stop_token_ids=(1,)),
    ):
        count, text, finish = deliver([0, 1, 0, 0], params)
        assert (count, text, finish.reason) == (2, "a", "stop")


@pytest.mark.parametrize(("text", "stop", "length"), table(__file__)["tails"])
def test_a_tail_that_begins_a_stop_string_is_not_settled(text, stop, length):
    assert stable_text_length(text, stop) == length


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.booleans())
def test_settled_text_is_never_taken_back(text, stop, keep):
    rules, transcript = StopRules(frozenset(), tuple(stop), 100, keep), OutputText(WordDecoder())
    shown = ""
    for count, letter in enumerate(text, 1):
        finish = rules.judge(WORDS.index(letter), count, transcript)
        now = transcript.read()
        end = len(now) if finish else stable_text_length(now, tuple(stop))
        assert end >= len(shown) and now.startswith(shown)
        shown = now[:end]
        if finish:
            break
