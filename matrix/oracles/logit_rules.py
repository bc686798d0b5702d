"""The logits that a request with logit rules samples from, token by token: the zoo's own network without KV, then
transformers' logits processors. Shares no code with the engine."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from specmatrix.matrix.oracles.grammar import following
from specmatrix.matrix.workloads.finish import banned_early
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import CHECKPOINTS, eos_ids

# A command that only starts workers imports the gates, but needs no torch.
if TYPE_CHECKING:
    from torch import Tensor

    from specmatrix.matrix.zoo.net import CausalNet


class RuledToken(NamedTuple):
    """One output token under its request's rules, in nats.

    behind: log-probability gap to the likeliest token. logprob: of the token, at the request's temperature. kept:
    whether it survives min_p and bans. begin, end: of the probability in the order of ids, the part that draws it.
    """

    behind: float
    logprob: float
    kept: bool
    begin: float = 0.0
    end: float = 1.0


@cache
def ruled_tokens(
    target: str, request: RequestSpec, prompt: tuple[int, ...], output: tuple[int, ...]
) -> tuple[RuledToken, ...]:
    """Every output token of a request, after the true prompt and the output before it."""
    import torch
    from transformers.generation.logits_process import MinPLogitsWarper, TemperatureLogitsWarper

    text, rules, found = (*prompt, *output), Rules(request, eos_ids(target)), []
    heat: Any = TemperatureLogitsWarper(float(request.temperature or 1.0))
    rare: Any = MinPLogitsWarper(request.min_p if request.temperature else 0.0)
    with torch.inference_mode():
        raw = network(target)(torch.tensor([text]))[0][0]
        for index in range(len(prompt), len(text)):
            token, ids = text[index], torch.tensor([text[:index]])
            scores = rules.processed(ids, len(prompt), raw[index - 1])
            warm = heat(ids, scores)
            behind = float(scores.max() - scores[0, token])
            left = rare(ids, warm)[0].double().softmax(-1)
            end, drawn = float(left[: token + 1].sum()), request.temperature and request.untruncated
            part = (end - float(left[token]), end) if drawn else ()
            found.append(RuledToken(behind, float(warm.log_softmax(-1)[0, token]), bool(left[token] > 0), *part))
    return tuple(found)


class Rules:
    """A request's logit rules as transformers' processors; penalties over the output, which it lacks, by hand."""

    def __init__(self, request: RequestSpec, eos: frozenset[int]) -> None:
        from transformers.generation.logits_process import (
            NoBadWordsLogitsProcessor,
            RepetitionPenaltyLogitsProcessor,
            SequenceBiasLogitsProcessor,
            SuppressTokensLogitsProcessor,
        )

        self._request = request
        self._before: list[Any] = []
        self._after: list[Any] = []
        if request.logit_bias:
            bias: Any = [[[token], float(value)] for token, value in request.logit_bias]
            self._before.append(SequenceBiasLogitsProcessor(bias))
        if request.repetition_penalty != 1.0:
            self._before.append(RepetitionPenaltyLogitsProcessor(request.repetition_penalty))
        if request.bad_words_ids:
            self._after.append(NoBadWordsLogitsProcessor([list(words) for words in request.bad_words_ids]))
        if request.allowed_token_ids is not None:
            others = sorted({*range(tokenizer().get_vocab_size())} - {*request.allowed_token_ids})
            self._after.append(SuppressTokensLogitsProcessor(others))
        self._early: Any = SuppressTokensLogitsProcessor(sorted(banned_early(request, eos)))
        self._eos = eos

    def processed(self, ids: Tensor, prompt: int, raw: Tensor) -> Tensor:
        """Raw logits [V] after the text ids [1, L] -> [1, V] after bias, penalties and bans."""
        scores, request = raw[None].clone(), self._request
        for rule in self._before:
            scores = rule(ids, scores)
        for token, times in Counter(ids[0, prompt:].tolist()).items():
            scores[0, token] -= request.frequency_penalty * times + request.presence_penalty
        early = [self._early] if ids.shape[1] - prompt < request.min_new_tokens else []
        for rule in [*self._after, *early]:
            scores = rule(ids, scores)
        if request.grammar is not None:
            legal = following(request, tuple(ids[0, prompt:].tolist()), self._eos)
            scores = scores.masked_fill(~scores.new_tensor(legal).bool(), float("-inf"))
        return scores


@cache
def network(target: str) -> CausalNet:
    """A target as the zoo's own network, float32 on the CPU."""
    import torch

    from specmatrix.matrix.zoo.checkpoint import read_net
    from specmatrix.matrix.zoo.registry import RECIPES

    return read_net(CHECKPOINTS / target, RECIPES[target], torch.device("cpu"))
