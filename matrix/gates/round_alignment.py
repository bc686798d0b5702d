"""Compares acceptance lengths round by round with the expected ones: at a fixed width with the reference's rounds, at
changing widths with the oracle's reach (correct consecutive drafts from each position)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate


def oracle_rounds(reach: Sequence[int], widths: Sequence[int], emitted: int) -> tuple[int, ...]:
    """Expected tokens per round (bonus included) up to `emitted` tokens for these widths; the last width repeats.

    Stops where the oracle's data ends.
    """
    rounds: list[int] = []
    start = 0
    while start < min(emitted, len(reach)) and widths:
        width = widths[min(len(rounds), len(widths) - 1)]
        rounds.append(min(reach[start], width - 1) + 1)
        start += rounds[-1]
    return tuple(rounds)


def first_reach_mismatch(
    mine: Sequence[int], widths: Sequence[int], reach: Sequence[int], retractions: int = 0
) -> int | None:
    """Index of the first round whose length differs from the oracle's at the same position and width; None if none.

    Rounds past the oracle's data are accepted. After a retraction the new prefill emits one token outside any round,
    which shifts all later rounds by one token; up to `retractions` such shifts may occur anywhere.
    """
    start, moves = 0, set(range(retractions + 1))
    for index, (length, width) in enumerate(zip(mine, widths, strict=True)):
        moves = {moved for moved in moves if due_tokens(reach, start + moved, width) in (None, length)}
        if not moves:
            return index
        moves = set(range(min(moves), retractions + 1))
        start += length
    return None


def due_tokens(reach: Sequence[int], start: int, width: int) -> int | None:
    """Tokens of a round of this width that starts at a position; None past the oracle's data."""
    return min(reach[start], width - 1) + 1 if start < len(reach) else None


def first_round_mismatch(
    mine: Sequence[int], theirs: Sequence[int], retractions: int = 0, caps: Sequence[int] = ()
) -> int | None:
    """Index of the first round that starts at the same token as a reference round but has another length.

    What a round accepts depends only on its start position, and at most `caps` of it if it verified a part of its
    draft. The last round of either side may be truncated and is not compared. A retraction shifts later rounds as in
    `first_reach_mismatch`.
    """
    known = dict(zip(accumulate(theirs, initial=0), theirs[:-1], strict=False))
    start, moves = 0, set(range(retractions + 1))
    for index, length in enumerate(mine[:-1]):
        most = caps[index] if caps else sys.maxsize
        moves = {moved for moved in moves if min(known.get(start + moved, length), most) == length}
        if not moves:
            return index
        moves = set(range(min(moves), retractions + 1))
        start += length
    return None
