"""Plain decoding against transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from transformers import PreTrainedModel

from specmatrix.benchmarks.metric import Metric, red
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.subjects import NEW_TOKENS, difference, engine, fixed, prompts, transformers_model

GOALS: Final = {1: 3.5, 8: 2.5}
PAIRS: Final = 12


def measure() -> list[Metric]:
    """One metric per batch size: 128 new tokens per prompt in float32, prompts of 32 tokens, prefill included."""
    ours, theirs = engine(), transformers_model("llama-mini")
    asked = prompts(ours, max(GOALS))
    found = []
    for batch, goal in GOALS.items():
        name = f"plain_decoding_batch_{batch}_vs_transformers"
        their = generate(theirs, asked[:batch])
        wrong = difference(ours.generate(asked[:batch], fixed(top_logprobs=2)), their())
        if wrong:
            found.append(red(name, goal, f"tokens differ from transformers': {wrong}"))
            continue
        pairs = interleave(lambda few=asked[:batch]: ours.generate(few, fixed()), their, PAIRS)
        rate = batch * NEW_TOKENS / min(pairs.ours)
        found.append(pairs.metric(name, goal, note=f"at best {rate:,.0f} tokens/s"))
    return found


def generate(
    model: PreTrainedModel, asked: Sequence[Sequence[int]], **rest: PreTrainedModel
) -> Callable[[], list[list[int]]]:
    """A call that greedily continues prompts of one length with transformers and returns the new tokens."""
    ids = torch.tensor(asked)
    mask = torch.ones_like(ids)

    def call() -> list[list[int]]:
        out = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0, **rest
        )
        return out[:, ids.shape[1] :].tolist()

    return call
