"""Plain decoding under a grammar, one token at a time, each under a fresh matcher."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import xgrammar

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams


def allowed(llm: LLM, params: SamplingParams, output: list[int]) -> list[int]:
    """The tokens that may follow an output; [] if the grammar refuses it."""
    assert params.constraint is not None
    matcher = xgrammar.GrammarMatcher(llm.grammars.compile(params.constraint).grammar)
    mask = torch.full((1, -(-llm.vocab_size // 32)), -1, dtype=torch.int32)
    marker, begun = list(params.reasoning_end_ids), not params.reasoning_end_ids
    for place, token in enumerate(output):
        if begun and not matcher.accept_token(token):
            return []
        begun = begun or output[: place + 1][-len(marker) :] == marker
    if begun:
        matcher.fill_next_token_bitmask(mask, 0)
    return np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: llm.vocab_size]).tolist()


def decoded(llm: LLM, prompt: list[int], params: SamplingParams) -> list[int]:
    """A request's output by single-token requests of the same engine, whose only rule is a list of allowed tokens."""
    output: list[int] = []
    while len(output) < params.max_new_tokens:
        legal = allowed(llm, params, output)
        free = {"regex": None, "ebnf": None, "json_schema": None, "structural_tag": None, "reasoning_end_ids": ()}
        one = replace(params, **free, max_new_tokens=1, allowed_token_ids=legal)
        output += llm.generate([[*prompt, *output]], one)[0].output_ids
        if output[-1] in llm.tokenizer.eos_ids:
            break
    return output
