"""Two ranks over NCCL, each on its own GPU; one that dies, hangs or raises in a collective ends all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.matrix.zoo.registry import resolve_path
from tests.support import gpu_ranks

SIZE = 2
# Logits of half precision, which reach 30 here, are rounded by up to 0.06.
TIE = 0.25
spare_ends = pytest.fixture(scope="module", autouse=True)(gpu_ranks.spare_ends)


def test_ranks_hold_their_tensors_on_their_own_gpus():
    gpu_ranks.check_homes(SIZE)


def test_sums_through_the_ranks_memory_have_the_bits_of_sums_of_gathered_parts():
    gpu_ranks.check_sums(SIZE)


def test_two_gpus_generate_what_one_generates():
    gpu_ranks.check_tokens(SIZE)


def test_in_half_precision_two_gpus_leave_one_only_where_two_tokens_tie():
    """No projection is fused across a sum over ranks: it would add one rank's part only."""
    fast = {"dtype": "bfloat16", "enable_deterministic_inference": False}
    ranked = RankedLLM(gpu_ranks.asked(tp_size=SIZE, **fast), resolve_path)
    exact = LLM(gpu_ranks.asked(), resolve_path).generate(
        gpu_ranks.PROMPTS, replace(gpu_ranks.PARAMS, top_logprobs_num=2)
    )
    for mine, theirs in zip(gpu_ranks.said(ranked), exact, strict=True):
        margins = [best - second for (_, best), (_, second) in theirs.top_logprobs]
        apart = [n for n, (one, other) in enumerate(zip(mine, theirs.output_ids, strict=True)) if one != other]
        assert not apart or margins[apart[0]] < TIE
    assert ranked.counters["spec.accepted"] > 0 and ranked.group.agreement.divergence is None
    ranked.close()


@gpu_ranks.LOSSES
def test_a_rank_that_is_lost_within_a_round_is_named_and_ends_all(leaves, version, how):
    gpu_ranks.check_loss(SIZE, leaves, version, how)


def test_what_one_rank_raises_within_a_round_ends_all():
    gpu_ranks.check_raise(SIZE)
