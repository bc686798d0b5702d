"""Decoding on a CPU beside transformers: llama-mini in float32, one compute thread, equal tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

import specmatrix.matrix.zoo
from specmatrix.benchmarks.metric import Metric, interleave, wrong
from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.subjects.in_process import checkpoint

PAIRS: Final = 12
NEW_TOKENS: Final = 128
PROMPT_TOKENS: Final = 32
# Goals by batch size.
TRANSFORMERS: Final = {1: 3.5, 8: 2.5}
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
        yield compared(ours, generate(theirs, asked), asked, name, goal)


def compared(
    ours: LLM, their: Callable[[], Tokens], asked: Sequence[tuple[int, ...]], name: str, goal: float
) -> Metric:
    """Their time over ours for the same tokens; red if the tokens differ."""
    differs = difference(ours.generate(asked, fixed(top_logprobs=2)), their())
    if differs:
        return wrong(name, goal, f"tokens differ from those of transformers: {differs}")
    pairs = interleave(lambda: ours.generate(asked, fixed()), their, PAIRS)
    best, their_best = (len(asked) * NEW_TOKENS / min(taken) for taken in (pairs.ours, pairs.theirs))
    return pairs.metric(name, goal, note=f"at best {best:,.0f} tokens/s against {their_best:,.0f} of transformers")


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


def engine() -> LLM:
    """llama-mini in float32, without prefix cache, as a repeated prompt must cost as much as for the peer."""
    return LLM(
        EngineConfig(
            model_path="llama-mini",
            speculative_algorithm="NONE",
            disable_radix_cache=True,
            dtype="float32",
            device="cpu",
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
