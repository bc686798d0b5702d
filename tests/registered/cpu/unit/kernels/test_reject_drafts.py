"""Rejection sampling gives exactly the target's distribution, in fractions, which the fast form follows."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import prod

import pytest
import torch

from specmatrix.errors import KernelError
from specmatrix.kernels.reject_drafts import reject_drafts
from specmatrix.kernels.reject_drafts.reference import chances, rest
from specmatrix.kernels.sample import choose, probabilities

TOKENS = range(3)


def law(*weights: int) -> list[Fraction]:
    return [Fraction(weight, sum(weights)) for weight in weights]


# p and q after each text of drafts, given as functions of it: laws that differ by text, point masses and zeros.
ROWS = [law(5, 2, 1), law(1, 3, 4), law(0, 1, 1), law(1, 0, 0), law(2, 3, 3), law(1, 6, 1), law(4, 1, 4), law(0, 0, 1)]
PAIRS = {
    "near": (lambda text: ROWS[sum(text) % 2], lambda text: law(4, 3, 1)),
    "far": (lambda text: ROWS[(3 * len(text) + sum(text)) % 8], lambda text: ROWS[(5 * len(text) + sum(text) + 3) % 8]),
    "equal": (lambda text: ROWS[len(text)], lambda text: ROWS[len(text)]),
    "point": (lambda text: ROWS[len(text)], lambda text: ROWS[3]),
}


def output_law(p, q, steps: int, block: bool) -> tuple[dict[tuple[int, ...], Fraction], list[Fraction]]:
    """The distribution of the first steps + 1 tokens, the later ones from p, and P(at least i drafts are accepted)."""
    found: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    reached = [Fraction(0)] * (steps + 1)
    for drafts in product(TOKENS, repeat=steps):
        likely = prod((q(drafts[:i])[d] for i, d in enumerate(drafts)), start=Fraction(1))
        if not likely:
            continue
        targets, draws = [p(drafts[:i]) for i in range(steps + 1)], [q(drafts[:i]) for i in range(steps)]
        each = [min(chance, Fraction(1)) for chance in chances(targets, draws, drafts, block)]
        for accepted in range(steps + 1):
            if block:  # the longest prefix whose coin is low enough
                share = prod((1 - chance for chance in each[accepted:]), start=each[accepted - 1] if accepted else 1)
            else:
                share = prod(each[:accepted], start=1 - each[accepted] if accepted < steps else Fraction(1))
            masses = rest(targets, draws, drafts, accepted, block)
            for i in range(accepted + 1):
                reached[i] += likely * share
            for token in TOKENS:
                prefix = (*drafts[:accepted], token)
                weight = likely * share * masses[token] / sum(masses)
                for tail in product(TOKENS, repeat=steps + 1 - len(prefix)):
                    text = (*prefix, *tail)
                    more = prod((p(text[:i])[text[i]] for i in range(len(prefix), steps + 1)), start=Fraction(1))
                    found[text] += weight * more
    return found, reached


@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_output_has_exactly_the_targets_law(pair, steps, block):
    p, q = PAIRS[pair]
    found, reached = output_law(p, q, steps, block)
    for text in product(TOKENS, repeat=steps + 1):
        assert found[text] == prod((p(text[:i])[token] for i, token in enumerate(text)), start=Fraction(1)), text
    # Never fewer drafts than by the token rule, whose first draft is accepted with sum of min(p, q).
    token = output_law(p, q, steps, False)[1]
    assert sum(reached) >= sum(token)
    assert reached[1] >= token[1] == sum(map(min, p(()), q(())))
    # P(at least i are accepted) of the block rule is E_q[h_i].
    if block:
        for i in range(1, steps + 1):
            assert reached[i] == expected_h(p, q, i)


def expected_h(p, q, i: int) -> Fraction:
    total = Fraction(0)
    for drafts in product(TOKENS, repeat=i):
        likely, h = Fraction(1), Fraction(1)
        for place, draft in enumerate(drafts):
            drawn = q(drafts[:place])[draft]
            likely *= drawn
            h = min(h * p(drafts[:place])[draft] / drawn, Fraction(1)) if drawn else Fraction(0)
        total += likely * h
    return total


@pytest.mark.parametrize("name", ["p", "q", "coins", "last"])
def test_another_shape_is_refused(name):
    g = torch.Generator().manual_seed(0)
    given = {
        "p": torch.rand(2, 3, 5, generator=g),
        "q": torch.rand(2, 2, 5, generator=g),
        "drafts": torch.zeros(2, 2, dtype=torch.int64),
        "coins": torch.rand(2, 2, generator=g).double(),
        "last": torch.rand(2, 3, generator=g).double(),
    }
    given[name] = given[name][:, 1:]
    with pytest.raises(KernelError, match=f"reject_drafts: {name} has shape"):
        reject_drafts(**given, block=False)


def test_rows_of_another_shape_are_refused_by_choose_and_probabilities():
    with pytest.raises(KernelError, match="choose: coins has shape"):
        choose(torch.rand(2, 3, 5), torch.rand(2, 2).double())
    one = torch.ones(2)
    with pytest.raises(KernelError, match="probabilities: top_k has shape"):
        probabilities(torch.rand(2, 3, 5), one, torch.zeros(3, dtype=torch.int64), one)
