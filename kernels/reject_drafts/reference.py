"""Reference of reject_drafts: one request at a time, in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

Row: TypeAlias = Sequence[Fraction]


def reject_drafts(
    p: Tensor, q: Tensor, drafts: Tensor, coins: Tensor, last: Tensor, block: bool
) -> tuple[Tensor, Tensor]:
    """Applies `chances` and `rest`, comparing coins exactly."""
    tokens, count = torch.zeros(last.shape, dtype=torch.int64), torch.zeros(len(last), dtype=torch.int64)
    for b, row in enumerate(drafts.tolist()):
        target, drawn = _exact(p[b]), _exact(q[b])
        below = [
            Fraction(coin) < most
            for coin, most in zip(coins[b].tolist(), chances(target, drawn, row, block), strict=True)
        ]
        places = [i for i in range(len(row) + 1) if (i == 0 or below[i - 1]) and (block or all(below[:i]))]
        accepted = max(places)
        tokens[b, :accepted] = drafts[b, :accepted]
        for place in range(accepted, len(row) + 1):
            law = rest(target, drawn, row, place, block)
            tokens[b, place] = _choose(law, Fraction(float(last[b, place])))
        count[b] = accepted + 1
    return tokens, count


def chances(p: Sequence[Row], q: Sequence[Row], drafts: Sequence[int], block: bool) -> list[Fraction]:
    """Upper bound of each draft's accepting coin. Token rule: given that all earlier drafts were accepted; block rule:
    for the prefix ending with it, given that no longer prefix was accepted.
    """
    held = _held(p, q, drafts)
    if not block:
        return [_ratio(p[i], q[i], draft) for i, draft in enumerate(drafts)]
    found = []
    for i in range(1, len(drafts) + 1):
        h = held[i]
        if i < len(drafts) and 0 < h < 1:
            more = sum(max(h * x - y, Fraction(0)) for x, y in zip(p[i], q[i], strict=True))
            found.append(more / (more + 1 - h))
        else:
            found.append(h)
    return found


def rest(p: Sequence[Row], q: Sequence[Row], drafts: Sequence[int], accepted: int, block: bool) -> Row:
    """Unnormalised masses of the token after a number of accepted drafts."""
    if accepted == len(drafts):
        return p[accepted]
    h = _held(p, q, drafts)[accepted] if block else 1
    left = [max(h * x - y, Fraction(0)) for x, y in zip(p[accepted], q[accepted], strict=True)]
    return left if any(left) else p[accepted]


def _ratio(p: Row, q: Row, draft: int) -> Fraction:
    return p[draft] / q[draft] if 0 < q[draft] <= 1 else Fraction(0)


def _held(p: Sequence[Row], q: Sequence[Row], drafts: Sequence[int]) -> list[Fraction]:
    held = [Fraction(1)]
    for i, draft in enumerate(drafts):
        held.append(min(held[-1] * _ratio(p[i], q[i], draft), Fraction(1)))
    return held


def _exact(rows: Tensor) -> list[list[Fraction]]:
    return [[Fraction(x) if math.isfinite(x) and x > 0 else Fraction(0) for x in row] for row in rows.tolist()]


def _choose(masses: Row, coin: Fraction) -> int:
    reached, wanted = Fraction(0), coin * sum(masses)
    for token, mass in enumerate(masses):
        reached += mass
        if reached > wanted:
            return token
    raise ValueError("a coin is below 1, and some mass is above 0")
