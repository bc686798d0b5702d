"""Decoding beside others: equal tokens, ties excepted, come before any speed."""

import pytest

from specmatrix.benchmarks import decoding
from specmatrix.benchmarks.decoding import PROMPT_TOKENS, TIE, compared, difference, engine, fixed, prompts


@pytest.fixture(scope="module")
def llm():
    return engine()


@pytest.fixture(scope="module")
def run(llm):
    asked = prompts(llm, 2)
    assert {len(prompt) for prompt in asked} == {PROMPT_TOKENS}
    return llm.generate(asked, fixed(8, top_logprobs=2))


def ids(run):
    return [list(output.output_ids) for output in run]


def test_a_different_token_is_named_unless_it_is_a_tie(run):
    other = ids(run)
    assert difference(run, other) == ""
    gaps = [best[1] - second[1] for best, second in run[1].top_logprobs]
    clear = next(i for i, gap in enumerate(gaps) if gap > TIE)
    other[1][clear] = 5 if other[1][clear] != 5 else 6
    assert difference(run, other).startswith(f"prompt 1: token {clear} is {run[1].output_ids[clear]} ")
    other[0].pop()
    assert difference(run, other) == "prompt 0: 8 tokens against 7"


def test_equal_tokens_have_a_ratio_and_others_none(llm, monkeypatch):
    monkeypatch.setattr(decoding, "PAIRS", 1)
    asked = prompts(llm, 1)
    right = compared(llm, lambda: ids(llm.generate(asked, fixed())), asked, "m", 1.0)
    assert right.median > 0 and right.note.endswith("of transformers")
    assert compared(llm, lambda: [[1]], asked, "m", 1.0).state == "red"
