"""From logits to tokens and log-probabilities, by each request's sampling parameters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.sample import draw, uniform

__all__ = ["SamplingRows", "chosen_logprobs", "pick", "top_logprobs", "uniform"]


class SamplingRows(NamedTuple):
    """Per request [B]: temperature float32 (0 = greedy), top_k int64 (0 = off), top_p float32, seed int64."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor


def pick(logits: Tensor, emit_positions: Tensor | None, rows: SamplingRows | None, truncate: bool = True) -> Tensor:
    """The token emitted at each position -> int64 [B, W].

    logits float [B, W, V]; emit_positions int64 [B, W]: absolute index of the token being produced, so that the random
    number depends only on the request's seed and that index. rows None (every row is greedy, so neither random numbers
    nor positions are needed) and truncate=False (no row uses top_k or top_p) are guarantees by the host that save work
    and do not change the result.
    """
    if rows is None or emit_positions is None:
        return argmax(logits)
    coins = uniform(rows.seed, emit_positions)
    return draw(logits, coins, rows.temperature, rows.top_k, rows.top_p, truncate)


def chosen_logprobs(logits: Tensor, tokens: Tensor, rows: SamplingRows | None = None) -> Tensor:
    """Log-probability of tokens [B, W] under logits [B, W, V] -> float32 [B, W].

    With `rows`, under softmax(logits / temperature), a greedy row with temperature 1; top-k and top-p are ignored.
    """
    return _logprobs(logits, rows).gather(-1, tokens[..., None])[..., 0]


def top_logprobs(logits: Tensor, k: int, rows: SamplingRows | None = None) -> tuple[Tensor, Tensor]:
    """The k largest log-probabilities, in descending order: values float32 and ids int64, both [B, W, k]."""
    values, ids = _logprobs(logits, rows).topk(k, dim=-1)
    return values, ids


def _logprobs(logits: Tensor, rows: SamplingRows | None) -> Tensor:
    logits = logits.float()
    if rows is not None:
        heat = rows.temperature.masked_fill(rows.temperature <= 0, 1.0)[:, None, None]
        # With a small temperature, dividing the maximum could give infinity.
        logits = (logits - logits.amax(-1, keepdim=True)).div_(heat)
    return torch.log_softmax(logits, -1)
