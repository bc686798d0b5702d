"""Tokens and log-probabilities from logits, under each request's sampling parameters."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.backend import on_triton
from specmatrix.kernels.sample import choose, draw, probabilities, uniform

__all__ = [
    "SamplingRows", "chosen_logprobs", "drawn_drafts", "largest", "law_of", "pick", "stream", "top_logprobs", "uniform",
]  # fmt: skip

# Keys of rejection sampling's independent random streams: draft noise, acceptance coins, and the residual draw. They
# differ from each other and from the stream of `pick`.
NOISE: Final = 0x2545F4914F6CDD1D
COINS: Final = 0x5851F42D4C957F2D
RESIDUAL: Final = 0x369DEA0F31A53F85
# More columns than any round has: at most 256 drafts and the bonus token.
COLUMNS: Final = 512


class SamplingRows(NamedTuple):
    """Per request [B]: temperature float32 (0 = greedy), top_k int64 (0 = off), top_p float32, seed int64."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor


def pick(logits: Tensor, emit_positions: Tensor | None, rows: SamplingRows | None, truncate: bool = True) -> Tensor:
    """Sample a token at each position -> int64 [B, W].

    logits float [B, W, V]; emit_positions int64 [B, W]: absolute index of the token being produced, so that the random
    number depends only on the request's seed and that index. rows None (every row is greedy, so neither random numbers
    nor positions are needed) and truncate=False (no row uses top_k or top_p) are guarantees by the host that save work
    and do not change the result.
    """
    if rows is None or emit_positions is None:
        return argmax(logits)
    coins = uniform(rows.seed, emit_positions)
    return draw(logits, coins, rows.temperature, rows.top_k, rows.top_p, truncate)


def largest(logits: Tensor) -> Tensor:
    """The largest of logits [B, W, V] in each row -> [B, W]; NaN is larger than every number."""
    if not on_triton(logits):
        return logits.amax(-1)
    # torch's maximum of few long rows takes several times as long as this kernel.
    return logits.gather(2, argmax(logits)[..., None])[..., 0]


def stream(which: int, seed: Tensor, start: Tensor, columns: Tensor) -> Tensor:
    """Coins f(seed, position, column) of a stream -> float64 [B, W] in [0, 1).

    seed, start [B]; columns [W] from 1: the token at position start + column in a round that begins at start. When a
    later round drafts a position again, its column differs: block verification's decision depends on the coins of
    rejected drafts too, so reusing them would bias the result.
    """
    return uniform(seed ^ which, (start[:, None] + columns) * COLUMNS + columns)


def law_of(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The distribution of `pick`, float32 [B, W, V]; a point mass for greedy rows."""
    return probabilities(logits, rows.temperature, rows.top_k, rows.top_p)


def drawn_drafts(logits: Tensor, start: Tensor, columns: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """Draft tokens [B, W] for these columns of rounds that begin at start [B], from logits [B, W, V], and their
    distribution q [B, W, V] under the request's temperature, top_k and top_p."""
    q = law_of(logits, rows)
    return choose(q, stream(NOISE, rows.seed, start, columns)), q


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
        # Subtracted first: dividing by a small temperature could overflow.
        logits = (logits - logits.amax(-1, keepdim=True)).div_(heat)
    return torch.log_softmax(logits, -1)
