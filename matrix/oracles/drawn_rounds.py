"""Verify rounds of drafts that are drawn from their own distribution, recomputed from the target's network, the zoo's
naive drafts and the random numbers of a request's seed, one round at a time. Shares no code with the engine.

At column i = 1.. of a round that begins with L tokens in the KV: p_i is the target's distribution after the root and
i - 1 drafts, q_i the draft's, and each of three streams has one random number (docs/engine.md, "Acceptance rules").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specmatrix.matrix.oracles.logit_rules import Rules, network
from specmatrix.matrix.oracles.naive_rounds import zoo_drafts
from specmatrix.matrix.oracles.precision import Filtered, filtered, random_number
from specmatrix.matrix.subjects.protocol import AcceptanceRule
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import eos_ids

# A command that only starts workers imports the gates, but needs neither numpy nor torch.
if TYPE_CHECKING:
    from specmatrix.matrix.oracles.precision import Masses
    from specmatrix.matrix.zoo.oracle import Drafts, OracleDraft, Shape


# By stream, what is combined with the seed; and the factor of the position, as more columns than a round can have.
NOISE: Final = 0x2545F4914F6CDD1D
COINS: Final = 0x5851F42D4C957F2D
RESIDUAL: Final = 0x369DEA0F31A53F85
COLUMNS: Final = 512


class DrawnRound(NamedTuple):
    """One round. tokens: the accepted drafts and the token behind them. margin: how near a random number comes to
    another outcome, in probability. chances: of each draft, that it is accepted with all before it: under the token
    rule the sum of min(p, q) if those before it are, up to the first that is not; under the block rule h. shares: the
    confidence of each draft, its probability of its best token unless it has a head for it. drawn: q of each verified
    draft, accepted or not."""

    tokens: tuple[int, ...]
    margin: float
    chances: tuple[float, ...]
    shares: tuple[float, ...] = ()
    drawn: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Text:
    """A request's prompt and output, and the zoo's models that read it."""

    target: str
    algorithm: str
    request: RequestSpec
    seed: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    drafts: Callable[[str], Drafts] = zoo_drafts

    @cached_property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]

    @cached_property
    def _rules(self) -> Rules:
        return Rules(self.request, eos_ids(self.target))

    def draft(self, shape: Shape) -> OracleDraft:
        """The naive draft of rounds with a shape."""
        return self.drafts(self.target).of(self.algorithm, shape, self.tokens)

    def coin(self, stream: int, known: int, column: int) -> float:
        """A stream's random number for the token at position known + column of a round from `known` on."""
        return random_number((self.seed ^ stream), (known + column) * COLUMNS + column)

    def target_laws(self, known: int, path: Sequence[int]) -> list[Filtered]:
        """p after the root at `known`, and after each token of a path of drafts behind it."""
        import torch

        text = torch.tensor([[*self.tokens[: known + 1], *path]])
        raw = network(self.target)(text)[0][0]
        laws = []
        for end in range(known + 1, text.shape[1] + 1):
            scores = self._rules.processed(text[:, :end], len(self.prompt), raw[end - 1])[0]
            laws.append(filtered(self.request, scores, self.request.min_p))
        return laws


def drawn_round(
    text: Text, draft: OracleDraft, known: int, steps: int, block: bool, wide: int = 0, plain: bool = False
) -> DrawnRound:
    """The round that begins with `known` tokens in the KV and verifies `steps` drafts, of `wide` or as many. plain: no
    row has drafts, so each token is drawn as in plain decoding."""
    import numpy as np

    path, q, margins, shares = _drafted(text, draft, known, max(steps, wide))
    path, q, margins = path[:steps], q[:steps], margins[: 2 * steps]
    laws = text.target_laws(known, path)
    p = [law.masses for law in laws]
    q = [_over_target(draft, masses, len(p[0])) for masses in q]
    coins = [text.coin(COINS, known, column) for column in range(1, steps + 1)]
    accepted, chances, held, margin = (_by_block if block else _by_token)(p, q, path, coins)
    left = np.maximum(held * p[accepted] - q[accepted], 0.0) if accepted < steps else p[steps]
    # Where p is q up to rounding there is no residual.
    left = left if left.sum() > 0 else p[accepted]
    coin = random_number(text.seed, known + 1) if plain else text.coin(RESIDUAL, known, accepted + 1)
    last, near = _chosen(left, coin)
    margin = min(*margins, *(law.margin for law in laws), margin, near)
    drawn = tuple((token, float(law[token])) for token, law in zip(path, q, strict=True))
    return DrawnRound((*path[:accepted], last), margin, tuple(chances), shares, drawn)


def chances_along(
    text: Text, draft: OracleDraft, known: int, path: Sequence[int], places: int, rule: AcceptanceRule
) -> list[float]:
    """The chance of each of a round's first drafts that it is accepted, given that those before it are `path`. match:
    of the draft's best token; reject: of one that is drawn; block: of the first alone, as any."""
    import numpy as np

    laws, states, found = text.target_laws(known, path[: places - 1]), list[Any](), []
    drawing = text.request if rule.filtered else replace(text.request, top_k=-1, top_p=1.0)
    for place, law in enumerate(laws[: 1 if rule.rule == "block" else places]):
        state, logits = draft.after([known], [tuple(path[:place])], [states])
        states.append(state[0])
        if rule.rule == "match":
            found.append(float(law.masses[draft.to_target(int(logits[0].argmax()))]))
        else:
            q = _over_target(draft, filtered(drawing, logits[0]).masses, len(law.masses))
            found.append(float(np.minimum(law.masses, q).sum()))
    return found


def _drafted(
    text: Text, draft: OracleDraft, known: int, steps: int
) -> tuple[tuple[int, ...], list[Masses], list[float], tuple[float, ...]]:
    """The drafts, the law over the draft's vocabulary that each was drawn from, the margins of both, and the share of
    each place's best token."""
    path: tuple[int, ...] = ()
    states, laws, margins, shares = list[Any](), [], [], list[float]()
    for column in range(1, steps + 1):
        state, logits = draft.after([known], [path], [states])
        law = filtered(text.request, logits[0])
        index, margin = _chosen(law.masses, text.coin(NOISE, known, column))
        margins += [margin, law.margin]
        states.append(state[0])
        laws.append(law.masses)
        sure = draft.confidence(known, path)
        shares.append(float(logits[0].softmax(-1).max()) if sure is None else sure)
        path = (*path, draft.to_target(index))
    return path, laws, margins, tuple(shares)


def _over_target(draft: OracleDraft, law: Masses, size: int) -> Masses:
    """A draft's law over the target's vocabulary."""
    import numpy as np

    found = np.zeros(size)
    found[[draft.to_target(index) for index in range(len(law))]] = law
    return found


def _by_token(
    p: Sequence[Masses], q: Sequence[Masses], path: Sequence[int], coins: Sequence[float]
) -> tuple[int, list[float], float, float]:
    """Accepted drafts, chances, the factor of p in the residual, and the least margin, by the token rule."""
    import numpy as np

    chances, margin = [], 1.0
    for place, (token, coin) in enumerate(zip(path, coins, strict=True)):
        chances.append(float(np.minimum(p[place], q[place]).sum()))
        gap = float(p[place][token] - coin * q[place][token])
        margin = min(margin, abs(gap))
        if gap <= 0:
            return place, chances, 1.0, margin
    return len(path), chances, 1.0, margin


def _by_block(
    p: Sequence[Masses], q: Sequence[Masses], path: Sequence[int], coins: Sequence[float]
) -> tuple[int, list[float], float, float]:
    """The same by the block rule, which decides from the last draft on."""
    import numpy as np

    held = [1.0]
    for place, token in enumerate(path):
        held.append(min(held[-1] * float(p[place][token] / q[place][token]), 1.0))
    margin = 1.0
    for place in range(len(path), 0, -1):
        h, coin = held[place], coins[place - 1]
        gap = h - coin
        if place < len(path) and 0 < h < 1:
            more = float(np.maximum(h * p[place] - q[place], 0.0).sum())
            gap = more - coin * (more + 1 - h)
        margin = min(margin, abs(gap))
        if gap > 0:
            return place, held[1:], h, margin
    return 0, held[1:], 1.0, margin


def _chosen(masses: Masses, coin: float) -> tuple[int, float]:
    """The first index whose cumulative mass exceeds the coin's share of all, and how much mass is to its ends."""
    import numpy as np

    level = np.cumsum(masses)
    wanted = coin * level[-1]
    index = min(int(np.searchsorted(level, wanted, side="right")), int(np.flatnonzero(masses)[-1]))
    return index, float(min(level[index] - wanted, wanted - (level[index] - masses[index])))
