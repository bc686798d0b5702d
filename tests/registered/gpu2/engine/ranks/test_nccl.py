"""Two ranks over NCCL: each on a GPU of its own, and one that dies, hangs or raises in a collective ends both."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.api import LLM
from engine.core.config import EngineConfig
from engine.core.request import SamplingParams
from engine.ranks.group import RankLost
from engine.ranks.llm import RankedLLM
from engine.ranks.spare import end_spare
from matrix.zoo.registry import resolve_path

sys.path.insert(0, str(Path(__file__).parent))
from asked_of_ranks import at_home, dies_in_a_round, hangs_in_a_round, raises_in_a_round

pytestmark = pytest.mark.register(est_seconds=50, tier="gpu2", stage="pr")

PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "Question: Tom has 12 apples."]
PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)
SIZE, DEVICE = 2, "cuda"
# Logits of half precision, which reach 30 here, are rounded by up to 0.06.
TIE = 0.25


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_spare()


def asked(**more: object) -> EngineConfig:
    tree = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    exact = {"dtype": "float32", "enable_deterministic_inference": True}
    shape = {"page_size": 4, "max_running_requests": 4, "max_total_tokens": 512, "device": DEVICE}
    return EngineConfig("llama-mini", "EAGLE3", "llama-mini-eagle3", **{**tree, **exact, **shape, **more})


def said(llm: LLM | RankedLLM) -> list[tuple[int, ...]]:
    """Four times the same answers; the rounds of the last are graphs where there are any."""
    answers = [[output.output_ids for output in llm.generate(PROMPTS, PARAMS)] for _ in range(4)]
    assert answers[1:] == answers[:-1]
    return answers[0]


def test_ranks_hold_what_is_theirs_on_their_own_gpus():
    ranked = RankedLLM(asked(tp_size=SIZE), resolve_path)
    said(ranked)
    assert ranked.group.call(at_home) > 40
    ranked.close()


def test_two_gpus_say_what_one_says():
    one, ranked = LLM(asked(), resolve_path), RankedLLM(asked(tp_size=SIZE), resolve_path)
    assert said(ranked) == said(one)
    shown = ranked.probes
    assert shown["graph.replayed"] > shown["graph.eager"] > 0 < shown["spec.accepted"]
    assert ranked.group.agreement.divergence is None
    ranked.close()


def test_in_half_precision_two_gpus_leave_one_only_where_two_tokens_tie():
    """No joined projection stands where the sums of ranks do: it would add what one rank has alone."""
    fast = {"dtype": "bfloat16", "enable_deterministic_inference": False}
    ranked = RankedLLM(asked(tp_size=SIZE, **fast), resolve_path)
    exact = LLM(asked(), resolve_path).generate(PROMPTS, replace(PARAMS, top_logprobs_num=2))
    for mine, theirs in zip(said(ranked), exact, strict=True):
        margins = [best - second for (_, best), (_, second) in theirs.top_logprobs]
        apart = [n for n, (one, other) in enumerate(zip(mine, theirs.output_ids, strict=True)) if one != other]
        assert not apart or margins[apart[0]] < TIE
    assert ranked.probes["spec.accepted"] > 0 and ranked.group.agreement.divergence is None
    ranked.close()


@pytest.mark.parametrize(
    ("leaves", "patience", "told"),
    [
        (dies_in_a_round, 60.0, "rank 1 of 2 died with exit code -9\nlog of rank 1:\n"),
        (hangs_in_a_round, 5.0, "rank 1 of 2 was silent for 5 s\nlog of rank 1:\n"),
    ],
)
def test_a_rank_that_is_lost_within_a_round_ends_all_within_its_time(leaves, patience, told):
    """And the next engine has the same GPUs."""
    ranked = RankedLLM(asked(tp_size=SIZE), resolve_path)
    expected = said(ranked)
    group, group_began = ranked.group, time.monotonic()
    group.patience = patience
    with pytest.raises(RankLost) as caught:
        group.call(leaves, PROMPTS)
    assert time.monotonic() - group_began < 15
    assert str(caught.value).startswith(told) and "the last words of rank 1" in str(caught.value)
    assert ("in hangs_in_a_round" in str(caught.value)) == (leaves is hangs_in_a_round)
    assert not group.alive and all(process.poll() is not None for process in group.processes)
    again = RankedLLM(asked(tp_size=SIZE), resolve_path)
    assert again.group is not group and said(again) == expected
    again.close()


def test_what_one_rank_raises_within_a_round_ends_all():
    ranked = RankedLLM(asked(tp_size=SIZE), resolve_path)
    said(ranked)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError) as caught:
        ranked.group.call(raises_in_a_round, PROMPTS)
    assert caught.value.__notes__[0].startswith("raised on rank 1 of 2\n") and time.monotonic() - began < 15
    assert not ranked.group.alive
