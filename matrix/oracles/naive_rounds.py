"""Drafts accepted by each verify round of a text, recomputed with the naive drafts of `matrix.zoo.oracle`, which
know neither pages nor rounds.

Unlike the stored oracle this follows any text, also past its end of sequence up to the end of the context, and over the
turns of a session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from functools import cache
from itertools import accumulate, repeat
from operator import mul
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy

    from specmatrix.matrix.zoo.oracle import Drafts, Proposals, Shape

# A confidence this near to its threshold may be on the other side in the engine: float32 rounds by up to 1e-6.
NEAR: Final = 1e-4


class NaiveCheck(NamedTuple):
    """rounds: number compared. place: index of the first round that accepted another number of tokens; None if none.
    reach: tokens of the text before the last compared round."""

    rounds: int
    place: int | None
    reach: int


class Sure(NamedTuple):
    """Rounds of chains that verify drafts while their confidence, the product of the probabilities of each place's best
    token, is at least `threshold`, if that is not 0. widths: nodes that each round verified; rooms: tokens that were
    left of the length; most: nodes of a draft. temperatures: of the places, as a head's confidences are calibrated.
    shown: what each round says of its drafts."""

    threshold: float
    widths: Sequence[int]
    rooms: Sequence[int]
    most: int
    temperatures: Sequence[float] = ()
    shown: Sequence[Sequence[float]] = ()

    def differs(self, index: int, shares: Sequence[float]) -> bool:
        """Whether a round verified another number than these probabilities of its drafts give, or shows others."""
        pairs = zip(shares, self.temperatures or repeat(1.0), strict=False)
        shares = [one ** (1 / t) / (one ** (1 / t) + (1 - one) ** (1 / t)) for one, t in pairs]
        if self.shown and any(abs(one - two) > NEAR for one, two in zip(shares, self.shown[index], strict=False)):
            return True
        room = min(self.rooms[index], self.most) if self.threshold else 1
        held: list[float] = list(accumulate(shares[: room - 1], mul))
        if any(abs(one - self.threshold) < NEAR for one in held):
            return False
        return self.threshold > 0 and sum(one >= self.threshold for one in held) != self.widths[index] - 1


@cache
def zoo_drafts(target: str) -> Drafts:
    """The drafts of the zoo for a target."""
    from specmatrix.matrix.zoo.oracle import Drafts

    return Drafts(target)


def naive_check(
    target: str,
    algorithm: str,
    shapes: Sequence[Shape],
    prompt: Sequence[int],
    output: Sequence[int],
    lengths: Sequence[int],
    among: Container[int] = range(sys.maxsize),
    drafts: Callable[[str], Drafts] = zoo_drafts,
    starts: Sequence[int] = (),
    caps: Sequence[int] = (),
    sure: Sure | None = None,
    legal: Callable[[tuple[int, ...]], numpy.ndarray] | None = None,
) -> NaiveCheck:
    """Compare an answer's rounds. shapes: (steps, topk, draft tokens) of each round; lengths: tokens of each, bonus
    included. among: indices of the rounds to compare. drafts: makes a target's drafts. starts: index of each round's
    first token in the output; (): one follows the other. caps: most tokens of each round.
    legal: the tokens that may follow an output, bool [V], for drafts that follow a grammar.
    A round whose accepted path may extend past the end of the text is not compared.
    """
    import torch

    from specmatrix.matrix.zoo.oracle import Proposals, accepted_paths, key_of

    def after(known: int, path: tuple[int, ...]) -> numpy.ndarray:
        assert legal is not None
        return legal((*tokens[len(prompt) : known + 1], *path))

    tokens, compared, reach = [*prompt, *output], 0, 0
    starts = starts or [*accumulate(lengths, initial=1)]
    rounds = [
        (index, length, shape, len(prompt) + start - 1)
        for index, (length, shape, start) in enumerate(zip(lengths, shapes, starts, strict=False))
        if index in among
    ]
    proposals: dict[tuple[str, int], Proposals] = {}
    paths: dict[int, tuple[int, ...]] = {}
    with torch.inference_mode():
        for shape in dict.fromkeys(shape for _, _, shape, _ in rounds):
            key, alike = key_of(algorithm, shape), [known for _, _, own, known in rounds if own == shape]
            if key not in proposals:
                proposals[key] = Proposals(drafts(target).of(algorithm, shape, tokens), legal and after)
            paths |= zip(alike, accepted_paths(proposals[key], tokens, alike, shape), strict=True)
        for index, length, shape, known in rounds:
            path, most = paths[known], caps[index] if caps else sys.maxsize
            if known + min(1 + len(path), most) >= len(tokens):
                break
            compared, reach = compared + 1, known
            shares = best_shares(proposals[key_of(algorithm, shape)], known, shape[2] - 1) if sure is not None else []
            if min(len(path) + 1, most) != length or (sure is not None and sure.differs(index, shares)):
                return NaiveCheck(compared, index, reach)
    return NaiveCheck(compared, None, reach)


def best_shares(proposals: Proposals, known: int, drafts: int) -> list[float]:
    """The confidence of each draft of a chain of best tokens: its probability, unless the draft has a head for it."""
    path: tuple[int, ...] = ()
    shares = []
    for _ in range(drafts):
        share, token = proposals.of([known], [path])[0][0]
        sure = proposals.draft.confidence(known, path)
        shares.append(share if sure is None else sure)
        path = (*path, token)
    return shares
