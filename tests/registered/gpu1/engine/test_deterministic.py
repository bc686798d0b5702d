"""On a GPU, in half precision: speculation, timing, batch, chunks and pages change no bit of a request's output."""

from __future__ import annotations

from functools import cache

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.engines import CHECKPOINTS, PROMPT, RUNS, TARGETS, engine

LENGTH = 48
PARAMS = [
    SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, return_logprob=True),
    SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, temperature=0.9, top_p=0.95, seed=8, top_logprobs_num=2),
    SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, temperature=0.7, seed=9, return_logprob=True),
]


def answers(llm, together: bool = True) -> list[tuple[object, ...]]:
    """Tokens and log-probabilities, to the last bit, of three requests of unequal length."""
    prompt = llm.tokenizer.encode(PROMPT)
    prompts = [prompt[: len(prompt) - cut] for cut in range(3)]
    if together:
        outputs = llm.generate(prompts, PARAMS)
    else:
        outputs = [llm.generate([one], [params])[0] for one, params in zip(prompts, PARAMS, strict=True)]
    return [(o.output_ids, o.logprobs, o.top_logprobs) for o in outputs]


@cache
def plain(target: str) -> list[tuple[object, ...]]:
    """The outputs of plain decoding, one request at a time, with large pages and unchunked prompts."""
    sizes = {"max_running_requests": 4, "max_total_tokens": 512, "page_size": 64, "chunked_prefill_size": 64}
    words = {"device": "cuda", "dtype": "bfloat16", "enable_deterministic_inference": True}
    return answers(LLM(EngineConfig(str(CHECKPOINTS / target), **words, **sizes)), together=False)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("algorithm", "topk"), RUNS)
def test_no_bit_changes(algorithm, topk, version):
    timing = {} if algorithm in ("NGRAM", "SUFFIX") else {"spec_version": version}
    llm = engine(algorithm, topk, device="cuda", dtype="bfloat16", enable_deterministic_inference=True, **timing)
    assert answers(llm) == plain(TARGETS.get(algorithm, "llama-mini"))
