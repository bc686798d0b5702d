"""Drafts accepted by each verify round of a text, recomputed with the naive drafts of `matrix.zoo.oracle_drafts`, which
keep no KV.

Unlike the stored oracle this follows any text, also past its end of sequence up to the end of the context, and over the
turns of a session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from specmatrix.matrix.zoo.oracle_drafts import Drafts, Shape


class NaiveCheck(NamedTuple):
    """rounds: number compared. place: index of the first round that accepted another number of tokens; None if none.
    reach: tokens of the text before the last compared round."""

    rounds: int
    place: int | None
    reach: int


@cache
def zoo_drafts(target: str) -> Drafts:
    """The drafts of the zoo for a target."""
    from specmatrix.matrix.zoo.oracle_drafts import Drafts

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
) -> NaiveCheck:
    """Compare an answer's rounds. shapes: (steps, topk, draft tokens) of each round; lengths: tokens of each, bonus
    included. among: indices of the rounds to compare. drafts: makes a target's drafts. A round whose accepted path may
    extend past the end of the text is not compared."""
    import torch

    from specmatrix.matrix.zoo.oracle import Proposals, accepted_path
    from specmatrix.matrix.zoo.oracle_drafts import key_of

    tokens, known, compared, reach = [*prompt, *output], len(prompt), 0, 0
    proposals: dict[tuple[str, int], Proposals] = {}
    with torch.inference_mode():
        for index, (length, shape) in enumerate(zip(lengths, shapes, strict=True)):
            if index not in among:
                known += length
                continue
            key = key_of(algorithm, shape)
            if key not in proposals:
                proposals[key] = Proposals(drafts(target).of(algorithm, shape, tokens))
            path = accepted_path(proposals[key], tokens, known, shape)
            if known + 1 + len(path) >= len(tokens):
                break
            compared, reach = compared + 1, known
            if len(path) + 1 != length:
                return NaiveCheck(compared, index, reach)
            known += length
    return NaiveCheck(compared, None, reach)
