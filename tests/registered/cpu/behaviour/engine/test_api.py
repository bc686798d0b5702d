"""The engine end to end on the zoo's models: tokens do not depend on drafts, batches, prefix hits, retractions or
aborts."""

from __future__ import annotations

import gc
import json
import math
import re
import shutil
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import Finish, SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.errors import ConfigError, RequestError
from tests.support.llama_engines import (
    DRAFTERS,
    GREEDY,
    NONE,
    PROMPTS,
    ZOO,
    at_rest,
    plain,
    said,
    start_engine,
)

CHAIN_OF_140 = (140, 1, 141)


HOT = (
    SamplingParams(max_new_tokens=24, temperature=0.8, seed=11, ignore_eos=True),
    SamplingParams(max_new_tokens=31, temperature=1.2, top_k=12, seed=12, ignore_eos=True),
    SamplingParams(max_new_tokens=27, temperature=1.0, top_p=0.9, seed=2**62, ignore_eos=True),
)


@pytest.mark.parametrize(
    ("shape", "version", "page_size"),
    [(CHAIN_OF_140, "v2", 1), ((60, 2, 2), "v1", 1), ((60, 3, 170), "v2", 16), (None, "v1", 200)],
    ids=str,
)
def test_rounds_reach_past_the_contexts_end_as_far_as_they_are_wide_or_deep(
    shape, version, page_size, tmp_path, monkeypatch
):
    """Draft and target always generate one token, so that whole chains are accepted past the last position of a context
    of 64. A chunk that begins near it is padded."""
    monkeypatch.setattr(CausalLM, "logits", lambda model, hidden: torch.eye(768)[5].expand(*hidden.shape[:-1], 768))
    shutil.copytree(ZOO / "llama-mini", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafts: dict[str, Any] = {}
    if shape:
        names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
        drafts = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(tmp_path)}
        drafts |= dict(zip(names, shape, strict=True))
    sizes = {"max_total_tokens": 2000, "chunked_prefill_size": 58, "page_size": page_size, "spec_version": version}
    llm = LLM(EngineConfig(str(tmp_path), **drafts, **sizes))
    params = [SamplingParams(max_new_tokens=most, ignore_eos=True) for most in (3, 5, 14)]
    outputs = llm.generate([[1] * 61, [1] * 59, [1] * 50], params)
    assert [out.output_ids for out in outputs] == [(5,) * p.max_new_tokens for p in params]
    assert shape != CHAIN_OF_140 or outputs[0].accept_lengths[0] == 141


def test_a_seed_decides_and_the_engines_own_is_used_without_one():
    params = [SamplingParams(max_new_tokens=16, temperature=1.5, seed=s, ignore_eos=True) for s in (1, 2, 1, None)]
    first, second, again, default = start_engine(random_seed=1).generate([PROMPTS[0]] * 4, params)
    assert first.output_ids == again.output_ids == default.output_ids != second.output_ids


@pytest.mark.parametrize(("shape", "cached"), [(NONE, 12), (DRAFTERS[0], 11), (DRAFTERS[2], 11)])
def test_a_drafter_that_looks_one_token_ahead_reuses_one_position_less(shape, cached):
    llm = start_engine(shape, page_size=1)
    tokens = llm.tokenizer.encode(PROMPTS[1])
    other = next(t for t in tokens if t not in (tokens[12], tokens[0]))
    llm.generate([tokens], GREEDY)
    (out,) = llm.generate([[*tokens[:12], other, other]], GREEDY)
    assert out.cached_tokens == cached


@pytest.mark.parametrize(
    ("prompt", "params", "sentence"),
    [
        ([], {}, "the prompt is empty; allowed: at least one token"),
        ([5, 768], {}, "prompt token 768 is outside the vocabulary; allowed: [0, 768)"),
        ([5, -1], {}, "prompt token -1 is outside the vocabulary; allowed: [0, 768)"),
        ([5], {"top_p": 2.0}, "top_p is 2.0; allowed: above 0 and at most 1"),
        ([5], {"stop_token_ids": (768,)}, "stop_token_ids is (768,); allowed: a list of token ids in [0, 768)"),
        (
            [5] * 200,
            {"max_new_tokens": 57},
            "prompt (200) plus max_new_tokens (57) is 257 tokens; allowed: at most the context length, 256",
        ),
        (
            [5] * 100,
            {"max_new_tokens": 98},
            "prompt plus max_new_tokens (198) and 2 speculative positions do not fit the KV pool of 199 tokens of "
            "full-attention layers, as 200 are needed at once; raise max_total_tokens or shorten the request",
        ),
    ],
)
def test_a_bad_request_is_refused_alone(prompt, params, sentence):
    llm = start_engine(max_total_tokens=199)
    good = llm.add(PROMPTS[0], GREEDY)
    llm.step()
    with pytest.raises(RequestError, match=f"^{re.escape(sentence)}$"):
        llm.add(prompt, SamplingParams(**params))
    other = llm.add(PROMPTS[1], GREEDY)
    assert other == good + 1
    while llm.step():
        pass
    assert said([llm.take(good), llm.take(other)]) == plain()[:2]
    at_rest(llm)


EXTREMES = (
    *(sign * value for value in (0, 1, 2**31, 2**63 - 1, 2**63, 10**30, 10**400) for sign in (1, -1)),
    *(0.0, -0.0, 5e-324, 1e-40, 2.0**-126, 3e-38, 1e-7, 0.5, 1 - 2.0**-53, 1.0, 2.0**126, 3.5e38, 1e300),
    *(float("inf"), -float("inf"), float("nan"), True, None, "1", (), (1,), [2**63]),
)
NUMBERS = ("temperature", "top_k", "top_p", "seed", "max_new_tokens", "top_logprobs_num", "stop_token_ids")


@cache
def shared_engine() -> LLM:
    return start_engine(DRAFTERS[3], spec_version="v2")


@given(st.dictionaries(st.sampled_from(NUMBERS), st.sampled_from(EXTREMES), min_size=1, max_size=3), st.booleans())
@settings(max_examples=30, deadline=None, derandomize=True)
@example({"temperature": 3e-38}, True)
@example({"temperature": 3e-38, "top_p": 5e-324, "top_k": 2**63 - 1}, False)
def test_an_extreme_value_is_refused_or_answered_and_harms_no_neighbour(values, hot):
    llm = shared_engine()
    asked = SamplingParams(
        **({"max_new_tokens": 3, "return_logprob": True} | ({"temperature": 1.0} if hot else {}) | values)
    )
    brief = SamplingParams(max_new_tokens=4)
    try:
        odd, beside = llm.generate([PROMPTS[1], PROMPTS[0]], [asked, brief])
    except RequestError as error:
        assert any(f"{name} is " in str(error) for name in values) or "max_new_tokens (" in str(error)
        (beside,) = llm.generate(PROMPTS[:1], brief)
    else:
        assert odd.finish.reason in ("length", "stop") and not any(map(math.isnan, odd.logprobs))
    assert beside.output_ids == plain()[0][0][:4]
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
        ([5, 10**5000], {}, "prompt token an integer of thousands of digits is outside the vocabulary"),
        ([5], {"stop_token_ids": (768,)}, "stop_token_ids is (768,); allowed: a list of token ids in [0, 768)"),
        ([5], {"top_logprobs_num": 769}, "top_logprobs_num is 769; allowed: an integer in [0, 768]"),
    ],
)
def test_the_vocabulary_is_the_models_not_the_tokenizers(prompt, params, sentence, tmp_path):
    llm = LLM(EngineConfig(str(widened(tmp_path)), max_total_tokens=700))
    with pytest.raises(RequestError, match=f"^{re.escape(sentence)}"):
        llm.generate([PROMPTS[0], prompt], SamplingParams(**params))
    assert said(llm.generate(PROMPTS, GREEDY)) == plain()


def test_the_sentences_of_take_and_generate():
    llm = start_engine()
    rid = llm.add(PROMPTS[0], GREEDY)
    with pytest.raises(RequestError, match=f"^request {rid} is waiting; its result is available once it is done$"):
        llm.take(rid)
    llm.step()
    with pytest.raises(RequestError, match=f"^request {rid} is running; its result is available once it is done$"):
        llm.take(rid)
    with pytest.raises(RequestError, match=r"^2 sampling parameters for 3 prompts; allowed: one, or one per prompt$"):
        llm.generate(PROMPTS, [GREEDY, GREEDY])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("shape", [NONE, DRAFTERS[2], DRAFTERS[3]], ids=lambda s: "-".join(map(str, s)))
def test_logprobs_are_those_of_a_teacher_forced_rerun(shape, temperature):
    """Every position is computed again as the first token after a prompt that ends there."""
    llm, alone = start_engine(shape, page_size=3), start_engine(disable_radix_cache=True)
    params = SamplingParams(
        max_new_tokens=12, temperature=temperature, seed=4, ignore_eos=True, return_logprob=True, top_logprobs_num=3
    )
    unasked, out = llm.generate(PROMPTS[:2], [GREEDY, params])
    assert unasked.logprobs == unasked.top_logprobs == ()
    assert len(out.logprobs) == len(out.top_logprobs) == len(out.output_ids) == 12
    tokens = llm.tokenizer.encode(PROMPTS[1])
    one = SamplingParams(max_new_tokens=1, temperature=temperature, ignore_eos=True, top_logprobs_num=768)
    for token, logprob, top in zip(out.output_ids, out.logprobs, out.top_logprobs, strict=True):
        (again,) = alone.generate([tokens], one)
        every = dict(again.top_logprobs[0])
        assert math.fsum(map(math.exp, every.values())) == pytest.approx(1.0, abs=1e-4)
        assert logprob == pytest.approx(every[token], abs=1e-4)
        assert [p for _, p in top] == pytest.approx(sorted(every.values(), reverse=True)[:3], abs=1e-4)
        assert all(p == pytest.approx(every[t], abs=1e-4) for t, p in top)
        tokens = [*tokens, token]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("shape", [NONE, *DRAFTERS], ids=lambda s: "-".join(map(str, s)))
def test_the_engine_runs_the_resolved_configuration(shape, version):
    llm = start_engine(
        shape,
        spec_version=version,
        page_size=7,
        disable_radix_cache=version == "v1",
        chunked_prefill_size=31,
        max_running_requests=5,
        enable_deterministic_inference=version == "v2",
    )
    back, resolved = llm.readback(), llm.resolved.as_dict()
    back.pop("row_invariant_matmul")
    assert not any(back.pop("alive").values())
    workers = back.pop("workers")
    assert {key: resolved[key] for key in back} == back
    assert workers and all(resolved[key] == value for own in workers.values() for key, value in own.items())
    assert back["lag"] == (version == "v2") and back["algorithm"] == shape[0]
    assert back["num_pages"] == 700 // 7 and back["max_running_requests"] == 5
    # Only names, derived values and the seed, which each request carries, are not read back.
    left = {"model_path", "draft_path", "spec_version", "max_total_tokens", "random_seed", "reasons", "rewrites"}
    assert set(resolved) - set(back) == left | {"swa_full_tokens_ratio", "cuda_graph_max_gb"}


@pytest.mark.parametrize("shape", DRAFTERS, ids=lambda s: "-".join(map(str, s)))
def test_metrics_agree_with_tokens_and_rounds(shape):
    llm = start_engine(shape)
    for out in llm.generate(PROMPTS, HOT):
        info = out.meta_info
        rounds, drafted = len(out.accept_lengths), shape[3] - 1
        assert info["spec_verify_ct"] == rounds
        assert info["completion_tokens"] == len(out.output_ids)
        # The prefill gives one token and the rounds the rest; only the last round may be cut.
        assert 1 + sum(out.accept_lengths[:-1]) < len(out.output_ids) <= 1 + sum(out.accept_lengths)
        assert all(1 <= a <= min(shape[1], drafted) + 1 for a in out.accept_lengths)
        assert info["spec_num_correct_drafts"] == sum(out.accept_lengths) - rounds
        assert info["spec_num_proposed_drafts"] == rounds * drafted
        assert info["spec_accept_length"] == len(out.output_ids) / rounds
        assert info["spec_accept_rate"] == info["spec_num_correct_drafts"] / info["spec_num_proposed_drafts"]
        assert sum(info["spec_correct_drafts_histogram"]) == rounds


def test_plain_decoding_claims_no_speculation():
    (out,) = start_engine().generate([PROMPTS[0]], GREEDY)
    assert set(out.meta_info) == {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"}
    assert set(out.accept_lengths) == {1} and out.meta_info["prompt_tokens"] == out.prompt_tokens
    assert out.meta_info["finish_reason"] == {"type": "stop", "matched": 1}


@pytest.mark.parametrize("shape", [NONE, DRAFTERS[0], DRAFTERS[3]], ids=lambda s: "-".join(map(str, s)))
def test_every_way_to_end(shape):
    llm = start_engine(shape)
    text = plain()[0][1]
    token = plain()[0][0][7]
    params = [
        SamplingParams(max_new_tokens=9),
        SamplingParams(max_new_tokens=1),
        SamplingParams(max_new_tokens=60, stop=(text[10:15],)),
        SamplingParams(max_new_tokens=60, stop_token_ids=(token,)),
        SamplingParams(max_new_tokens=60, ignore_eos=True),
        GREEDY,
    ]
    cap, single, string, stopped, ignoring, eos = llm.generate([PROMPTS[0]] * 6, params)
    ids = plain()[0][0]
    assert (cap.output_ids, cap.finish) == (ids[:9], Finish("length"))
    assert (single.output_ids, single.finish) == (ids[:1], Finish("length"))
    assert (string.text, string.finish) == (text[: text.index(text[10:15])], Finish("stop", text[10:15]))
    assert (stopped.output_ids, stopped.finish) == (ids[: ids.index(token) + 1], Finish("stop", token))
    assert stopped.text == llm.tokenizer.decode(ids[: ids.index(token)])
    assert len(ignoring.output_ids) == 60 and ignoring.output_ids[: len(ids)] == ids
    (end,) = llm.tokenizer.eos_ids
    assert eos.finish == Finish("stop", end)


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


def test_many_requests_through_few_rows():
    llm = start_engine(DRAFTERS[1], spec_version="v2", max_running_requests=2, page_size=3)
    prompts = PROMPTS * 3
    assert said(llm.generate(prompts, GREEDY)) == plain() * 3
    assert llm.counters["queue.waited"] > 0 and llm.counters["prefix.hit"] > 0
    at_rest(llm)


def test_a_start_that_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="speculative_algorithm 'MEDUSA' is unknown; it must be one of"):
        LLM(EngineConfig(str(ZOO / "llama-mini"), speculative_algorithm="MEDUSA"))


def test_generate_takes_all_prompts_or_none():
    llm = start_engine()
    with pytest.raises(RequestError, match=r"prompt token 5\.5 is of type float; allowed: int"):
        llm.generate([PROMPTS[0], [1, 5.5]])
    assert not llm.step() and not llm.loop.scheduler.requests
    with pytest.raises(RequestError, match="prompts is one string; allowed: a list of strings or of token id lists"):
        llm.generate("one text")
    assert said(llm.generate(PROMPTS, GREEDY)) == plain()
