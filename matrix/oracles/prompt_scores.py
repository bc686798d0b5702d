"""The log-probabilities of a prompt's tokens: the zoo's own network without KV, in one pass over the whole prompt."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from specmatrix.matrix.oracles.logit_rules import network
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.request import RequestSpec

if TYPE_CHECKING:
    from torch import Tensor


@cache
def prompt_scores(target: str, prompt: tuple[int, ...]) -> Tensor:
    """Log-probabilities of every token after each of a prompt's L tokens: float32 [L, V], in nats."""
    import torch

    with torch.inference_mode():
        logits: Tensor = network(target)(torch.tensor([prompt]))[0][0]
        return logits.log_softmax(-1)


def prompt_gap(request: RequestSpec, answer: Answer, scores: Tensor) -> float:
    """The largest difference in nats between an answer's prompt log-probabilities and `scores`. Includes alternatives:
    each against its token's value, and together against those of the likeliest tokens."""
    gaps = [0.0]
    first = request.prompt_logprobs
    columns = zip(answer.prompt_ids[first:], answer.prompt_logprobs, answer.prompt_top_logprobs, strict=False)
    for index, (token, value, best) in enumerate(columns, first):
        if index == 0 or value is None:
            continue
        row = scores[index - 1]
        gaps.append(abs(value - float(row[token])))
        if best:
            gaps += [abs(other - float(row[one])) for one, other in best]
            likeliest = zip(sorted((other for _, other in best), reverse=True), row.topk(len(best)).values, strict=True)
            gaps += [abs(other - float(one)) for other, one in likeliest]
    return max(gaps)
