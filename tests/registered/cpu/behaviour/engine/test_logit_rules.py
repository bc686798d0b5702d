"""What the device knows of each request's tokens, which its logit rules read."""

from __future__ import annotations

from pathlib import Path

import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.engines import CHECKPOINTS

PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Gus saves $75 a week for 3 weeks.",
)
PARAMS = (
    SamplingParams(max_new_tokens=36, ignore_eos=True, repetition_penalty=1.15, frequency_penalty=0.2),
    SamplingParams(max_new_tokens=40, ignore_eos=True, bad_words_ids=[[449, 273], [27, 749]]),
    SamplingParams(max_new_tokens=36, temperature=0.7, seed=3, min_p=0.2, min_new_tokens=30, return_logprob=True),
)
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 8}
SMALL = {"max_total_tokens": 132, "page_size": 4, "chunked_prefill_size": 8, "max_running_requests": 3}


def test_the_device_holds_each_requests_tokens_after_every_step():
    """At lag 0. The tokens of rows without a request are overwritten, so that no stale value can help."""
    config = EngineConfig(
        "llama-mini", "EAGLE3", "llama-mini-eagle3", spec_version="v1", strict_memory=2, **TREE, **SMALL
    )
    llm = LLM(config, lambda name: Path(CHECKPOINTS / name))
    rids = [llm.add(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    rules, compared = llm.loop.executor.plain.rules, 0
    while llm.step():
        active = [llm.request(rid) for rid in rids if llm.request(rid).row]
        for request in active:
            known = rules.history[request.row, : request.num_tokens].tolist()
            assert known == request.tokens
            compared += 1
        for row in {0, 1, 2, 3} - {request.row for request in active}:
            with torch.inference_mode():
                rules.history[row] = 700
    assert compared > 60 and llm.counters["retract.done"]
