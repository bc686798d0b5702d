"""Weights so large that some prompts overflow: those requests end with one sentence, and hurt no other request."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from specmatrix.cli import main
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import Finish, SamplingParams
from specmatrix.errors import EngineError
from tests.support.failing_steps import at_rest

SENTENCE = (
    "the request made the engine raise NotFiniteError: the target computed NaN or infinite numbers; its weights are "
    "too large or damaged; it was stopped, and its tokens so far are exact"
)
PROMPTS = (
    "Question: Eli had 75", "a", "1 + 1 = 2", "The quick brown fox jumps", "Cora has 12 keys", "zz zz", "Answer:",
    "\n\n\n", "64", "é漢🙂",
)  # fmt: skip
PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True, return_logprob=True)
FAILED = Finish("error", message=SENTENCE)
SIZES = {"context_length": 64, "max_total_tokens": 256, "strict_memory": 2, "enable_deterministic_inference": True}


def larger(folder: Path, changed: Callable[[str], float], source: Path) -> Path:
    """A copy of a checkpoint with tensors multiplied by `changed(name)`."""
    shutil.copytree(source, folder)
    tensors: dict[str, Tensor] = load_file(source / "model.safetensors")
    scaled = {name: tensor.float() * changed(name) for name, tensor in tensors.items()}
    save_file(scaled, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=[pytest.param(3.3e18, marks=pytest.mark.nightly), 3e18])
def sometimes(request, tmp_path_factory, zoo) -> Path:
    """Attention scores of the second layer overflow for some of the prompts."""
    scale = request.param
    return larger(
        tmp_path_factory.mktemp("large") / "llama-mini",
        lambda name: scale if name.endswith(("1.self_attn.q_proj.weight", "1.self_attn.k_proj.weight")) else 1.0,
        zoo("llama-mini"),
    )


def alone(folder: Path) -> list[tuple[tuple[int, ...], Finish]]:
    """Each prompt's tokens and end in its own engine without a drafter."""
    found = []
    for prompt in PROMPTS:
        (out,) = LLM(EngineConfig(str(folder), **SIZES)).generate([prompt], PARAMS)
        found.append((out.output_ids, out.finish))
    return found


@pytest.mark.parametrize("algorithm", ["NONE", "EAGLE3"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_only_the_requests_that_overflow_end(sometimes: Path, zoo, algorithm: str, version: str):
    expected = alone(sometimes)
    assert {finish for _, finish in expected} == {FAILED, Finish("length")}
    draft = str(zoo("llama-mini-eagle3")) if algorithm == "EAGLE3" else None
    llm = LLM(EngineConfig(str(sometimes), algorithm, draft, spec_version=version, page_size=4, **SIZES))
    for outs in (
        llm.generate(list(PROMPTS), PARAMS),
        # Each takes pages that the ones before have left.
        [llm.generate([prompt], PARAMS)[0] for prompt in PROMPTS],
    ):
        for out, (tokens, finish) in zip(outs, expected, strict=True):
            if draft and out.finish == FAILED:
                # A draft may overflow where the target's own tokens do not; with it the round's tokens are lost.
                assert out.output_ids == tokens[: len(out.output_ids)]
            else:
                assert (out.output_ids, out.finish) == (tokens, finish)
        assert {out.finish for out in outs} == {FAILED, Finish("length")}
    assert llm.health == "ok" and llm.drafter_error is None
    at_rest(llm)


def test_a_head_that_overflows_ends_every_request_without_a_log(tmp_path, zoo, caplog, capsys):
    folder = larger(tmp_path / "m", lambda name: 1e38 if "lm_head" in name else 1.0, zoo("llama-mini"))
    llm = LLM(EngineConfig(str(folder), **SIZES))
    for params in (PARAMS, replace(PARAMS, temperature=0.8, seed=1), replace(PARAMS, logprob_start_len=0)):
        assert {out.finish for out in llm.generate(list(PROMPTS), params)} == {FAILED}
    with pytest.raises(EngineError, match=f"ended with an error after this text: {SENTENCE}$"):
        list(llm.stream("Hello", PARAMS))
    at_rest(llm)
    assert not caplog.records
    assert main(["generate", "Hello", "--model-path", str(folder), "--speculative-algorithm", "NGRAM"]) == 2
    sentence = f"specmatrix: request 1 ended with an error after this text: {SENTENCE}\n"
    assert capsys.readouterr().err == sentence


def test_a_prompt_whose_log_probabilities_overflow_ends_alone(tmp_path, zoo):
    folder = larger(tmp_path / "m", lambda name: 1.3e37 if "lm_head" in name else 1.0, zoo("llama-mini"))
    llm, one = LLM(EngineConfig(str(folder), **SIZES)), replace(PARAMS, max_new_tokens=1)
    assert {out.finish.reason for out in llm.generate(list(PROMPTS), one)} == {"length"}
    outs = llm.generate(list(PROMPTS), replace(one, logprob_start_len=0))
    assert {out.finish for out in outs} == {FAILED, Finish("length")}
    assert all(math.isfinite(value) for out in outs for value in out.prompt_logprobs[1:])
