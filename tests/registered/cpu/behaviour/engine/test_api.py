"""The engine end to end on the zoo's models: tokens do not depend on drafts, batches, prefix hits, retractions or
aborts."""

from __future__ import annotations

import gc
import json
import re
import shutil
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.errors import ConfigError, RequestError
from tests.support import failing_steps
from tests.support.llama_engines import DRAFTERS, GREEDY, NONE, PROMPTS, ZOO, at_rest, drain, plain, said, start_engine


@pytest.mark.parametrize(
    ("prompt", "params", "sentence"),
    [
        ([], {}, "the prompt is empty; allowed: at least one token"),
        ([5, 768], {}, "prompt token 768 is outside the vocabulary; allowed: [0, 768)"),
        ([5, -1], {}, "prompt token -1 is outside the vocabulary; allowed: [0, 768)"),
        ([5], {"top_p": 2.0}, "top_p is 2.0; allowed: above 0 and at most 1"),
        ([5], {"stop_token_ids": (768,)}, "stop_token_ids is (768,); allowed: a list of token ids in [0, 768)"),
        ([5] * 200, {"max_new_tokens": 57}, "prompt (200) plus max_new_tokens (57) is 257 tokens; allowed: at most"),
        ([5] * 100, {"max_new_tokens": 98}, "prompt plus max_new_tokens (198) and 2 speculative positions do not fit"),
    ],
)
def test_a_bad_request_is_refused_alone(prompt, params, sentence):
    llm = start_engine(max_total_tokens=199)
    good = llm.add(PROMPTS[0], GREEDY)
    llm.step()
    with pytest.raises(RequestError, match=f"^{re.escape(sentence)}"):
        llm.add(prompt, SamplingParams(**params))
    other = llm.add(PROMPTS[1], GREEDY)
    assert other == good + 1
    drain(llm)
    assert said([llm.take(good), llm.take(other)]) == plain()[:2]
    at_rest(llm)


def widened(folder: Path) -> Path:
    """A checkpoint whose tokenizer has an end token without an embedding in its model."""
    shutil.copytree(ZOO / "llama-mini", folder, dirs_exist_ok=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 768, "content": "<|beyond|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [1, 768]}))
    return folder


@pytest.mark.parametrize(
    ("prompt", "params", "sentence"),
    [
        ("Hi <|beyond|>", {}, "the text contains token 768, which is outside the vocabulary; allowed: [0, 768)"),
        ([5], {"top_logprobs_num": 769}, "top_logprobs_num is 769; allowed: an integer in [0, 768]"),
    ],
)
def test_the_vocabulary_is_the_models_not_the_tokenizers(prompt, params, sentence, tmp_path):
    llm = LLM(EngineConfig(str(widened(tmp_path)), max_total_tokens=700))
    with pytest.raises(RequestError, match=f"^{re.escape(sentence)}"):
        llm.generate([PROMPTS[0], prompt], SamplingParams(**params))
    assert said(llm.generate(PROMPTS, GREEDY)) == plain()


def test_plain_decoding_claims_no_speculation():
    (out,) = start_engine().generate([PROMPTS[0]], GREEDY)
    assert set(out.meta_info) == {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"}
    assert set(out.accept_lengths) == {1} and out.meta_info["prompt_tokens"] == out.prompt_tokens
    assert out.meta_info["finish_reason"] == {"type": "stop", "matched": 1}


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        (NONE, {"strict_memory": 0}),
        (DRAFTERS[3], {"enable_streaming_session": True}),
        (("EAGLE3", 3, 1, 4), {"speculative_adaptive": True}),
        (("NGRAM", 3, 1, 4), {"speculative_draft_model_path": None}),
    ],
    ids=["plain", "tree in a session", "adaptive", "n-grams"],
)
def test_a_dropped_engine_is_gone_at_once(shape, more):
    llm = start_engine(shape, **more)
    session = SessionParams(llm.open_session(1000, streaming=True)) if llm.sessions.streaming else None
    llm.generate(PROMPTS[:1], GREEDY, session)
    held = [weakref.ref(part) for part in (llm, llm.loop, llm.loop.executor.target, llm.loop.executor.kv.full.pool)]
    gc.disable()  # models and KV pools must not wait for a full collection
    try:
        del llm
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


def test_a_start_that_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="speculative_algorithm 'MEDUSA' is unknown; it must be one of"):
        LLM(EngineConfig(str(ZOO / "llama-mini"), speculative_algorithm="MEDUSA"))


@pytest.mark.parametrize("around", [partial(torch.autocast, "cpu", torch.bfloat16), partial(torch.device, "meta")])
def test_the_callers_autocast_and_default_device_change_no_token(whole, around):
    with around():
        llm = failing_steps.start_engine()
        texts = [out.text for out in llm.generate(PROMPTS, failing_steps.PARAMS)]
    assert texts == whole and [out.text for out in llm.generate(PROMPTS, failing_steps.PARAMS)] == whole


def test_generate_takes_all_prompts_or_none():
    llm = start_engine()
    with pytest.raises(RequestError, match=r"prompt token 5\.5 is of type float; allowed: int"):
        llm.generate([PROMPTS[0], [1, 5.5]])
    assert not llm.step() and not llm.loop.scheduler.requests
    with pytest.raises(RequestError, match="prompts is one string; allowed: a list of strings or of token id lists"):
        llm.generate("one text")
    assert said(llm.generate(PROMPTS, GREEDY)) == plain()
