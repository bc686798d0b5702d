"""Drafts drawn from their own distribution: a GPU accepts and draws what a CPU does, in CUDA graphs and without."""

from __future__ import annotations

import pytest

from tests.support.drawn_drafts import DRAFTS, PROMPTS, SAMPLED, start


@pytest.mark.parametrize("rule", ["reject", "block"])
@pytest.mark.parametrize("algorithm", DRAFTS)
def test_a_seed_decides_the_tokens_on_every_device(algorithm, rule):
    places = {"device": "cpu"}, {"device": "cuda"}, {"device": "cuda", "disable_cuda_graph": True}
    found = []
    for place in places:
        outputs = start(algorithm, rule, dtype="float32", **place).generate(PROMPTS, SAMPLED)
        found.append([(output.output_ids, output.meta_info["spec_accept_length"]) for output in outputs])
    assert found[0] == found[1] == found[2]
    assert max(length for _, length in found[0]) > 1
