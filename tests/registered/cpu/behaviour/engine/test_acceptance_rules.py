"""Under rejection sampling a seeded request has its tokens whatever runs beside it, where and when; greedy ones those
of a match."""

from __future__ import annotations

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.engines import CHECKPOINTS

PROMPTS = ["Question: Tom has 3 apples and buys 4 more.", "Question: Ann", "Question: A train of 12 cars"]
DRAFTS = {
    "EAGLE3": ("llama-mini", "llama-mini-eagle3", 3),
    "STANDALONE": ("llama-mini", "llama-mini-standalone", 3),
    "DFLASH": ("llama-mini", "llama-mini-dflash", "auto"),
    "NEXTN": ("deepseek-mini", None, 2),
}
SAMPLED = [SamplingParams(24, 0.9, top_k=20 * i or -1, seed=i, ignore_eos=True) for i in range(3)]


def start(algorithm: str, rule: str, **more: object) -> LLM:
    model, draft, steps = DRAFTS[algorithm]
    path = None if draft is None else str(CHECKPOINTS / draft)
    shape = {"speculative_num_steps": steps, "speculative_acceptance": rule, "max_total_tokens": 2048}
    return LLM(EngineConfig(str(CHECKPOINTS / model), algorithm, path, strict_memory=1, **(shape | more)))


@pytest.mark.parametrize("rule", ["reject", "block"])
@pytest.mark.parametrize("algorithm", DRAFTS)
def test_a_seed_decides_the_tokens_alone_and_among_others_at_both_timings(algorithm, rule):
    one = start(algorithm, rule, spec_version="v1")
    together = [output.output_ids for output in one.generate(PROMPTS, SAMPLED)]
    greedy = SamplingParams(max_new_tokens=24, ignore_eos=True)
    assert [one.generate([p], [s])[0].output_ids for p, s in zip(PROMPTS, SAMPLED, strict=True)] == together
    other = start(algorithm, rule, page_size=16, chunked_prefill_size=7, spec_version="v2")
    mixed = other.generate([*PROMPTS, PROMPTS[0]], [*SAMPLED, greedy])
    assert [output.output_ids for output in mixed[:3]] == together
    matched = start(algorithm, "match", speculative_eagle_topk=1)
    assert matched.generate([PROMPTS[0]], [greedy])[0].output_ids == mixed[3].output_ids
    assert [output.output_ids for output in matched.generate(PROMPTS, SAMPLED)] != together
    drafted = [output.meta_info["spec_accept_length"] for output in mixed[:3]]
    assert max(drafted) > 1
