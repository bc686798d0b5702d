"""The engine and transformers on the zoo's checkpoints, and the check that both generate the same tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

import specmatrix.matrix.zoo
from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.subjects.in_process import checkpoint

NEW_TOKENS: Final = 128
PROMPT_TOKENS: Final = 32
# Two float32 implementations may rank tokens differently if their logits are closer than this (in nats).
TIE: Final = 1e-3
QUESTIONS: Final = Path(specmatrix.matrix.zoo.__file__).parent / "data" / "test.jsonl"


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


def transformers_model(name: str) -> PreTrainedModel:
    """transformers' own model of a zoo checkpoint in float32; it never stops at an end token."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(checkpoint(name), dtype="float32").eval()
    model.generation_config.eos_token_id = None
    return model


def questions() -> Iterator[str]:
    """Prompts of the zoo's test questions."""
    with QUESTIONS.open(encoding="utf-8") as lines:
        for line in lines:
            yield f"Question: {json.loads(line)['question']}\nAnswer:"


def prompts(llm: LLM, count: int) -> list[tuple[int, ...]]:
    """Question texts cut to one length in tokens, so that no batch needs padding."""
    ids = (tuple(llm.tokenizer.encode(text)[:PROMPT_TOKENS]) for text in questions())
    return list(islice((prompt for prompt in ids if len(prompt) == PROMPT_TOKENS), count))


def fixed(new_tokens: int = NEW_TOKENS, top_logprobs: int = 0) -> SamplingParams:
    """Greedy, exactly this many tokens."""
    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, top_logprobs_num=top_logprobs)


def difference(ours: Sequence[Output], theirs: Sequence[Sequence[int]]) -> str:
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
