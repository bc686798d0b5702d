"""The token that float32 would choose at each position of an answer, by the zoo's own network without KV along the
answer's own text, so comparison continues after a tie. Shares no code with the engine.

Margins of greedy choices: where two engines that round differently may choose different tokens.
"""

from __future__ import annotations

import json
from functools import cache
from math import log
from typing import TYPE_CHECKING, Final, NamedTuple

from specmatrix.matrix.cells.cell import MODELS, Cell, asked
from specmatrix.matrix.oracles.logit_rules import network, ruled_tokens
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_index, oracle_of
from specmatrix.matrix.zoo.registry import CLOSE, margins_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    Masses = npt.NDArray[np.float64]

WORD: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
# Shares of the probability nearer to 0 or 1 are float32's own rounding.
EDGE: Final = 1e-6
# So near to the end of top_p's part, rounding decides whether a token is in it.
CUT: Final = 1e-5


class PreciseToken(NamedTuple):
    """One output token. off: distance from float32's choice in nats of logits, 0 if equal: for a greedy request the gap
    to the likeliest token; for a sampled one the log-odds between its interval and the random number, times the
    temperature. Logits that are wrong by up to e nats change either by up to 2 e. logprob: its log-probability at the
    request's temperature, in nats."""

    off: float
    logprob: float


class Filtered(NamedTuple):
    """A law [V], and the least distance in probability of a token from being kept or removed by top_p."""

    masses: Masses
    margin: float


def filtered(request: RequestSpec, logits: Tensor, min_p: float = 0.0) -> Filtered:
    """The distribution of logits [V] under a sampled request's temperature, min_p, top_k and top_p."""
    import numpy as np

    masses = (logits.double() / request.temperature).softmax(-1).numpy()
    masses = np.where(masses >= min_p * masses.max(), masses, 0.0)
    order = np.argsort(-masses, kind="stable")
    ranked = masses[order]
    if request.top_k > 0:
        ranked[request.top_k :] = 0.0
    distance = (np.cumsum(ranked) - ranked) / ranked.sum() - request.top_p
    ranked[1:][distance[1:] >= 0] = 0.0
    law = np.zeros_like(masses)
    law[order] = ranked / ranked.sum()
    return Filtered(law, float(np.abs(distance[1:]).min()) if request.top_p < 1 else 1.0)


def followed(request: RequestSpec) -> bool:
    """Whether this oracle knows how a request's tokens are chosen."""
    return request.temperature == 0 or (request.untruncated and not request.ruled)


@cache
def precise_tokens(
    target: str, request: RequestSpec, seed: int, prompt: tuple[int, ...], output: tuple[int, ...]
) -> tuple[PreciseToken, ...]:
    """Check every output token of a request for which `followed` is true, or which top_k or top_p truncates. seed: of
    its random numbers."""
    import torch

    if request.ruled:
        return tuple(
            PreciseToken(token.behind, token.logprob) for token in ruled_tokens(target, request, prompt, output)
        )
    text, found = (*prompt, *output), []
    with torch.inference_mode():
        logits = network(target)(torch.tensor([text]))[0][0][len(prompt) - 1 : -1]
        scores = (logits / (request.temperature or 1.0)).log_softmax(-1).double()
    for index, token in enumerate(output):
        row = scores[index]
        if request.temperature == 0:
            off = float(row.max() - row[token])
        else:
            law, margin = row.exp(), 1.0
            if not request.untruncated:
                law, margin = filtered(request, logits[index])
            end = float(law[: token + 1].sum())
            begin = end - float(law[token])
            off = request.temperature * drawn_off(seed, len(prompt) + index, begin, end) if margin > CUT else 0.0
        found.append(PreciseToken(off, float(row[token])))
    return tuple(found)


def drawn_off(seed: int, position: int, begin: float, end: float) -> float:
    """Distance in log-odds between the random number of a position and a part of the probability, 0 if within it."""
    coin = log_odds(random_number(seed, position))
    return max(0.0, log_odds(begin) - coin, coin - log_odds(end))


def log_odds(share: float) -> float:
    """log(p / (1 - p)) of a share p of the probability, within those of `EDGE` and 1 - `EDGE`."""
    share = min(max(share, EDGE), 1 - EDGE)
    return log(share / (1 - share))


def random_number(seed: int, position: int) -> float:
    """Output number `position` of the splitmix64 stream that a seed starts, from 0 to 1."""
    start = _mixed((seed + GOLDEN) & WORD)
    return (_mixed((start + (position + 1) * GOLDEN) & WORD) >> 11) / 2**53


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


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
