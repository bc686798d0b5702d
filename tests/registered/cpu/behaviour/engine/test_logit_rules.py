"""Requests with different logit rules, batched, chunked and retracted: each generates what plain decoding generates
alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.engines import CHECKPOINTS, DRAFTS

PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Gus saves $75 a week for 3 weeks.",
)
COMMON = (449, 273, 27, 749, 313, 222, 24, 22)
RULES = {
    "history": (
        SamplingParams(max_new_tokens=36, ignore_eos=True, repetition_penalty=1.15, frequency_penalty=0.2),
        SamplingParams(max_new_tokens=40, ignore_eos=True, bad_words_ids=[[t, u] for t in COMMON for u in COMMON]),
        SamplingParams(max_new_tokens=36, temperature=0.7, seed=3, min_p=0.2, min_new_tokens=30, return_logprob=True),
    ),
    "more": (
        SamplingParams(max_new_tokens=32, presence_penalty=0.8, temperature=0.5, seed=1, ignore_eos=True),
        SamplingParams(max_new_tokens=32, logit_bias=dict.fromkeys(COMMON, -3.5), ignore_eos=True),
        SamplingParams(max_new_tokens=32, ignore_eos=True),
    ),
}
RUNS = (
    ("NONE", "v2", {}),
    ("STANDALONE", "v2", {"speculative_num_steps": 3, "speculative_eagle_topk": 1}),
    ("EAGLE3", "v1", {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 8}),
    ("EAGLE3", "v2", {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 8}),
    ("NGRAM", "v1", {"speculative_num_draft_tokens": 6}),
    ("DFLASH", "v2", {}),
)


def launch(algorithm: str, version: str, shape: dict[str, object], **more: object) -> LLM:
    draft = f"llama-mini-{algorithm.lower()}" if algorithm in DRAFTS else None
    config = EngineConfig(
        "llama-mini",
        algorithm,
        draft,
        spec_version=version,
        enable_deterministic_inference=True,
        strict_memory=2,
        **shape,
        **more,
    )
    return LLM(config, lambda name: Path(CHECKPOINTS / name))


def told(outputs: list[Output]) -> list[object]:
    return [(out.output_ids, out.finish, out.logprobs) for out in outputs]


@cache
def alone(name: str) -> list[object]:
    """The outputs of plain decoding, one request at a time."""
    llm = launch("NONE", "v1", {}, disable_radix_cache=True, max_total_tokens=512)
    return [told(llm.generate([p], params))[0] for p, params in zip(PROMPTS, RULES[name], strict=True)]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("algorithm", "version", "shape"), RUNS, ids=[f"{run[0]}-{run[1]}" for run in RUNS])
def test_a_request_with_rules_generates_what_plain_decoding_generates(algorithm, version, shape, name):
    tight = {"page_size": 4, "chunked_prefill_size": 8, "max_running_requests": 3}
    llm = launch(algorithm, version, shape, max_total_tokens=132 if algorithm != "DFLASH" else 160, **tight)
    outs = llm.generate(PROMPTS, RULES[name])
    assert told(outs) == alone(name)
    lengths = [length for out in outs for length in out.accept_lengths]
    assert algorithm == "NONE" or sum(lengths) > len(lengths)
    assert llm.counters["retract.done"] and llm.counters["prefill.chunked"]


def test_rules_change_the_output():
    llm = launch("NONE", "v1", {}, max_total_tokens=512)
    for prompt, params in [
        *zip(PROMPTS, RULES["history"], strict=True),
        *zip(PROMPTS[:2], RULES["more"][:2], strict=True),
    ]:
        plain = SamplingParams(params.max_new_tokens, params.temperature, seed=params.seed, ignore_eos=True)
        ruled, free = llm.generate([prompt, prompt], [params, plain])
        assert ruled.output_ids != free.output_ids, params


def test_the_device_holds_each_requests_tokens_after_every_step():
    """At lag 0. The tokens of rows without a request are overwritten, so that no stale value can help."""
    algorithm, version, shape = RUNS[2]
    llm = launch(
        algorithm, version, shape, max_total_tokens=132, page_size=4, chunked_prefill_size=8, max_running_requests=3
    )
    rids = [llm.add(prompt, params) for prompt, params in zip(PROMPTS, RULES["history"], strict=True)]
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
