"""The check before every speed: equal tokens, ties excepted."""

import pytest

from specmatrix.benchmarks.subjects import PROMPT_TOKENS, TIE, difference, engine, fixed, prompts


@pytest.fixture(scope="module")
def run():
    llm = engine()
    asked = prompts(llm, 2)
    assert {len(prompt) for prompt in asked} == {PROMPT_TOKENS}
    return llm.generate(asked, fixed(8, top_logprobs=2))


def ids(run):
    return [list(output.output_ids) for output in run]


def test_equal_tokens_are_no_difference(run):
    assert difference(run, ids(run)) == ""


def test_a_different_token_is_named_unless_it_is_a_tie(run):
    other = ids(run)
    gaps = [best[1] - second[1] for best, second in run[1].top_logprobs]
    clear = next(i for i, gap in enumerate(gaps) if gap > TIE)
    other[1][clear] = 5 if other[1][clear] != 5 else 6
    assert difference(run, other) == f"prompt 1: token {clear} is {run[1].output_ids[clear]} against {other[1][clear]}"


def test_a_shorter_answer_is_a_difference(run):
    other = ids(run)
    other[0].pop()
    assert difference(run, other) == "prompt 0: 8 tokens against 7"


def test_a_drafter_gives_the_same_tokens_through_the_same_door(run):
    drafted = engine("STANDALONE", "llama-mini-standalone", speculative_num_steps=2, speculative_eagle_topk=1)
    assert difference(run, ids(drafted.generate(prompts(drafted, 2), fixed(8)))) == ""
