"""Under rejection sampling a seeded request has its tokens whatever runs beside it, where and when; greedy ones those
of a match."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.drawn_drafts import DRAFTS, PROMPTS, SAMPLED, start


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
