"""Margins of greedy choices: where two engines that round differently may choose different tokens."""

from __future__ import annotations

import json
from functools import cache

from specmatrix.matrix.cells.cell import MODELS, Cell, asked
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_index, oracle_of
from specmatrix.matrix.zoo.registry import CLOSE, margins_file

Places = tuple[dict[int, float], ...]


def margin(target: str, request: RequestSpec, index: int) -> float:
    """Difference in nats of the two best tokens at an index after a request's prompt, by plain greedy decoding; at
    least CLOSE where it is not smaller, or behind the request's limit.

    Along the oracle's text as transformers has it, from a file; behind its end by the reference engine, which equals
    transformers on the oracle's prompts.
    """
    prompt, oracle = oracle_index(request), oracle_of(target)
    if prompt is not None and oracle is not None and index < len(oracle.continuation(request)):
        return _stored(target)[prompt].get(index, CLOSE)
    known = _computed(target, request.prompt, request.max_new_tokens)
    return known[index] if index < len(known) else CLOSE


@cache
def _stored(target: str) -> Places:
    found = json.loads(margins_file().read_text(encoding="utf-8"))[target]
    return tuple({int(index): nats for index, nats in prompt} for prompt in found)


@cache
def _computed(target: str, prompt: str, tokens: int) -> tuple[float, ...]:
    # Imports torch, which only a departure behind the oracle's text needs.
    from specmatrix.matrix.subjects.in_process import ReferenceSubject

    model = next(name for name, path in MODELS.items() if path == target)
    engine = ReferenceSubject().start_engine(asked(Cell(model=model).canonical))
    plain = RequestSpec("q", prompt, tokens, top_logprobs=2, ignore_eos=True)
    (answer,) = engine.generate([plain])
    return tuple(best[1] - second[1] for best, second in answer.top_logprobs)
