"""Margins of greedy choices: where two engines that round differently may choose different tokens."""

from __future__ import annotations

from functools import cache

from specmatrix.matrix.cells.cell import MODELS, Cell, asked
from specmatrix.matrix.workloads.request import RequestSpec


def margins(target: str, request: RequestSpec) -> tuple[float, ...]:
    """Difference in nats of the two best tokens at each position after a request's prompt, by plain greedy decoding
    with the reference engine, which equals transformers on the oracle's prompts."""
    return _margins(target, request.prompt, request.max_new_tokens)


@cache
def _margins(target: str, prompt: str, tokens: int) -> tuple[float, ...]:
    # Imports torch, which only a departure from the oracle needs.
    from specmatrix.matrix.subjects.in_process import ReferenceSubject

    model = next(name for name, path in MODELS.items() if path == target)
    engine = ReferenceSubject().start_engine(asked(Cell(model=model).canonical))
    plain = RequestSpec("q", prompt, tokens, top_logprobs=2, ignore_eos=True)
    (answer,) = engine.generate([plain])
    return tuple(best[1] - second[1] for best, second in answer.top_logprobs)
