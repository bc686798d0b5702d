"""The law of the first tokens after a prompt, and the log-probabilities of a prompt's tokens, by the zoo's own network
without KV. Shares no code with the engine."""

from __future__ import annotations

from copy import deepcopy
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from specmatrix.matrix.oracles.logit_rules import Rules, network
from specmatrix.matrix.oracles.precision import filtered
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import eos_ids

if TYPE_CHECKING:
    from torch import Tensor


# Outputs less likely than this are left out.
LEAST: Final = 1e-3
# Half a unit in the last place of a float32 of 1.
ULP: Final = 2.0**-24
# Networks that round at random, so that their spread is known to 9 %, and the tokens that they read at once.
COPIES, AT_ONCE = 64, 2048


@cache
def joint_law(target: str, request: RequestSpec) -> dict[tuple[int, ...], float]:
    """Probability of every output of a sampled request's `max_new_tokens` tokens, all drawn, that is likely enough,
    under its temperature, min_p, top_k and top_p; the likeliest first."""
    import torch

    prompt, paths = prompt_ids(request), dict[tuple[int, ...], float]({(): 1.0})
    with torch.inference_mode():
        for _ in range(request.max_new_tokens):
            rows = torch.tensor([[*prompt, *path] for path in paths])
            grown: dict[tuple[int, ...], float] = {}
            for (path, share), logits in zip(paths.items(), network(target)(rows)[0][:, -1], strict=True):
                law = filtered(request, logits, request.min_p).masses
                grown |= {(*path, int(token)): share * law[token] for token in (share * law >= LEAST).nonzero()[0]}
            paths = grown
    return {path: float(paths[path]) for path in sorted(paths, key=lambda path: -paths[path])}


class PromptGap(NamedTuple):
    """What the log-probabilities of an answer's prompt differ by from the network's in float64, in nats.

    nats: the largest difference, at the token `at`. spread: root mean square of all `numbers` differences. own:
    the same of this network in float32, over all tokens: the rounding of that text.
    """

    nats: float
    at: int
    spread: float
    own: float
    numbers: int


@cache
def prompt_scores(target: str, prompt: tuple[int, ...]) -> tuple[Tensor, float]:
    """Log-probabilities of every token after each of a prompt's L tokens, float64 [L, V], in nats, and the root mean
    square of what float32 rounds them by."""
    import torch

    with torch.inference_mode():
        nets = network(target), deepcopy(network(target)).double()
        rounded, exact = (net(torch.tensor([prompt]))[0][0].log_softmax(-1) for net in nets)
        return exact, float((rounded - exact).square().mean().sqrt())


@lru_cache(1)
def _roundings(target: str, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Logits of a text of L tokens in float64, [L, V], and `COPIES` of them with float32's rounding, [COPIES, L, V]:
    what each linear layer puts out is off at random by half a unit in the last place of its largest number, as sums in
    another order are. It grows as float32's own does, from a place where the network amplifies it to the next."""
    import torch

    net, rows, random = deepcopy(network(target)).double(), torch.tensor([text]), torch.Generator().manual_seed(0)

    def rounded(_layer: object, _given: object, out: Tensor) -> Tensor:
        off = torch.randn(out.shape, generator=random, dtype=out.dtype)
        return out + off * out.abs().amax(-1, keepdim=True) * ULP

    with torch.inference_mode():
        exact = net(rows)[0][0]
        for layer in net.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.register_forward_hook(rounded)
        at_once = max(1, AT_ONCE // len(text))
        counts = [min(at_once, COPIES - made) for made in range(0, COPIES, at_once)]
        return exact, torch.cat([net(rows.expand(count, -1))[0] for count in counts])


@cache
def rounding(target: str, request: RequestSpec, prompt: tuple[int, ...], output: tuple[int, ...], index: int) -> Tensor:
    """What float32 rounds the log-probability of each token as an output's token `index` by: root mean square in nats
    [V], under the request's rules and temperature.

    It is that of the difference between the token's logit and the mean of all by probability: next to nothing for a
    token of probability 1, and most where the hidden state is one that amplifies."""
    import torch

    at, rules = len(prompt) + index, Rules(request, eos_ids(target))
    ids = torch.tensor([(*prompt, *output[:index])])
    exact, copies = _roundings(target, (*prompt, *output))
    laws = [rules.processed(ids, len(prompt), raw[at - 1])[0] for raw in (exact, *copies)]
    first, *others = (torch.stack(laws) / (request.temperature or 1.0)).log_softmax(-1)
    off: Tensor = torch.stack(others) - first
    return off.square().mean(0).sqrt()


def prompt_gap(target: str, request: RequestSpec, answer: Answer) -> PromptGap:
    """Compare an answer's prompt log-probabilities, alternatives included: each with its token's value, and together
    with those of the likeliest tokens."""
    scores, own = prompt_scores(target, answer.prompt_ids)
    gaps, squares, first = [(0.0, 0)], list[float](), request.prompt_logprobs
    columns = zip(answer.prompt_ids[first:], answer.prompt_logprobs, answer.prompt_top_logprobs, strict=False)
    for index, (token, value, best) in enumerate(columns, first):
        if index == 0 or value is None:
            continue
        row = scores[index - 1]
        pairs = [(value, row[token]), *((other, row[one]) for one, other in best or ())]
        likeliest = row.topk(len(best or ())).values
        pairs += zip(sorted((other for _, other in best or ()), reverse=True), likeliest, strict=True)
        off = [abs(mine - float(theirs)) for mine, theirs in pairs]
        squares += [one * one for one in off]
        gaps.append((max(off), index))
    return PromptGap(*max(gaps), (sum(squares) / max(1, len(squares))) ** 0.5, own, len(squares))
