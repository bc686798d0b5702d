"""Decoding on a CPU beside transformers and vLLM: llama-mini in float32, one compute thread, equal tokens.

vLLM runs in its own environment and process, eagerly; while one side is timed, the other waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

import specmatrix.matrix.zoo
from specmatrix.benchmarks.metric import Metric, interleave, unmeasured, wrong
from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.subjects.engine_process import EngineProcess
from specmatrix.matrix.subjects.in_process import checkpoint
from specmatrix.matrix.subjects.protocol import EngineCommand, SubjectRequest
from specmatrix.matrix.subjects.vllm.subject import OFFLINE, ONE_THREAD, VllmSubject

PAIRS: Final = 12
NEW_TOKENS: Final = 128
PROMPT_TOKENS: Final = 32
# Draft tokens per round, and the draft model.
STEPS: Final = 3
DRAFT: Final = "llama-mini-standalone"
# Goals by batch size.
TRANSFORMERS: Final = {1: 3.5, 8: 2.5}
VLLM: Final = {1: 4.0, 8: 2.0}
VLLM_DRAFTED: Final = {1: 3.5, 8: 2.0}
VLLM_FLAGS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "seed": 0,
}
VLLM_FIELDS: Final = {
    "max_tokens": NEW_TOKENS,
    "temperature": 0.0,
    "ignore_eos": True,
    "logprobs": None,
    "top_logprobs": 0,
}
# Two float32 implementations may rank tokens differently if their logits are closer than this (in nats).
TIE: Final = 1e-3
QUESTIONS: Final = Path(specmatrix.matrix.zoo.__file__).parent / "data" / "test.jsonl"

Tokens = Sequence[Sequence[int]]


def beside_transformers() -> Iterator[Metric]:
    """Plain decoding against transformers' `generate`, by batch size, prefill included."""
    ours, theirs = engine(), transformers_model(checkpoint("llama-mini"))
    for batch, goal in TRANSFORMERS.items():
        asked = prompts(ours, batch)
        name = f"plain_decoding_batch_{batch}_vs_transformers"
        yield compared(ours, generate(theirs, asked), asked, name, goal, "transformers")


def beside_vllm() -> Iterator[Metric]:
    """Plain decoding, then speculation with the same draft model on both sides, by batch size."""
    flags = {
        "speculative_config": {"method": "draft_model", "num_speculative_tokens": STEPS},
        "per_request_spec_decode_metrics": "detailed",
    }
    yield from _beside_vllm(engine(), {}, {}, "plain_decoding", VLLM)
    ours = engine("STANDALONE", DRAFT, speculative_num_steps=STEPS, speculative_eagle_topk=1)
    yield from _beside_vllm(ours, flags, {"draft": DRAFT}, f"speculative_decoding_k{STEPS}", VLLM_DRAFTED)


def _beside_vllm(
    ours: LLM, flags: dict[str, Any], draft: dict[str, str], kind: str, goals: dict[int, float]
) -> Iterator[Metric]:
    names = {batch: f"{kind}_batch_{batch}_vs_vllm" for batch in goals}
    subject = VllmSubject()
    if subject.version() is None:
        why = "vLLM is not installed; `specmatrix subjects install vllm` installs it"
        yield from (unmeasured(names[batch], None, why) for batch in goals)
        return
    command = EngineCommand(VLLM_FLAGS | flags, {"target": "llama-mini"} | draft, environment=OFFLINE | ONE_THREAD)
    theirs = EngineProcess(subject, command)
    try:
        for batch, goal in goals.items():
            asked = prompts(ours, batch)
            requests = [SubjectRequest(str(place), prompt, VLLM_FIELDS) for place, prompt in enumerate(asked)]

            def call(requests: list[SubjectRequest] = requests) -> list[tuple[int, ...]]:
                return [answer.output_ids for answer in theirs.generate(requests)]

            yield compared(ours, call, asked, names[batch], goal, f"vLLM {subject.version()}")
    finally:
        theirs.stop()


def compared(
    ours: LLM, their: Callable[[], Tokens], asked: Sequence[tuple[int, ...]], name: str, goal: float, peer: str
) -> Metric:
    """Their time over ours for the same tokens; red if the tokens differ."""
    differs = difference(ours.generate(asked, fixed(top_logprobs=2)), their())
    if differs:
        return wrong(name, goal, f"tokens differ from those of {peer}: {differs}")
    pairs = interleave(lambda: ours.generate(asked, fixed()), their, PAIRS)
    best, their_best = (len(asked) * NEW_TOKENS / min(taken) for taken in (pairs.ours, pairs.theirs))
    return pairs.metric(name, goal, note=f"at best {best:,.0f} tokens/s against {their_best:,.0f} of {peer}")


def difference(ours: Sequence[Output], theirs: Tokens) -> str:
    """The first difference between tokens that is not a tie, or "". `ours` need top_logprobs of at least 2."""
    for number, (output, other) in enumerate(zip(ours, theirs, strict=True)):
        if len(output.output_ids) != len(other):
            return f"prompt {number}: {len(output.output_ids)} tokens against {len(other)}"
        pairs = zip(output.output_ids, other, strict=True)
        at = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
        if at is None:
            continue
        (_, best), (_, second) = output.top_logprobs[at][:2]
        if best - second >= TIE:
            return f"prompt {number}: token {at} is {output.output_ids[at]} against {other[at]}"
    return ""


def engine(algorithm: str = "NONE", draft: str | None = None, **rest: int) -> LLM:
    """llama-mini in float32, without prefix cache, as a repeated prompt must cost as much as for the peer."""
    return LLM(
        EngineConfig(
            model_path="llama-mini",
            speculative_algorithm=algorithm,
            speculative_draft_model_path=draft,
            disable_radix_cache=True,
            dtype="float32",
            device="cpu",
            **rest,
        ),
        checkpoint,
    )


def transformers_model(folder: Path | str, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """transformers' own model of a checkpoint; it never stops at an end token."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    model.generation_config.eos_token_id = None
    return model


def generate(model: PreTrainedModel, asked: Tokens) -> Callable[[], list[list[int]]]:
    """A call that greedily continues prompts of one length with transformers and returns the new tokens."""
    ids = torch.tensor(asked)
    mask = torch.ones_like(ids)

    def call() -> list[list[int]]:
        out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
        return out[:, ids.shape[1] :].tolist()

    return call


def prompts(llm: LLM, count: int) -> list[tuple[int, ...]]:
    """The zoo's test questions cut to one length in tokens, so that no batch needs padding."""
    with QUESTIONS.open(encoding="utf-8") as lines:
        texts = [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines]
    ids = (tuple(llm.tokenizer.encode(text)[:PROMPT_TOKENS]) for text in texts)
    return list(islice((prompt for prompt in ids if len(prompt) == PROMPT_TOKENS), count))


def fixed(new_tokens: int = NEW_TOKENS, top_logprobs: int = 0) -> SamplingParams:
    """Greedy, exactly this many tokens."""
    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, top_logprobs_num=top_logprobs)
