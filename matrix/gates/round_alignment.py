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
    mine: Sequence[int], widths: Sequence[int], reach: Sequence[int], starts: Sequence[int]
) -> int | None:
    """Index of the first round whose length differs from the oracle's at the same position and width; None if none.

    starts: index of each round's first token in the output. Rounds past the oracle's data are accepted.
    """
    for index, (length, width, start) in enumerate(zip(mine, widths, starts[: len(mine)], strict=True)):
        if due_tokens(reach, start - 1, width) not in (None, length):
            return index
    return None


def due_tokens(reach: Sequence[int], start: int, width: int) -> int | None:
    """Tokens of a round of this width that starts at a position; None past the oracle's data."""
    return min(reach[start], width - 1) + 1 if start < len(reach) else None


def first_round_mismatch(
    mine: Sequence[int], theirs: Sequence[int], starts: Sequence[int], caps: Sequence[int] = ()
) -> int | None:
    """Index of the first round that starts at the same token as a reference round but has another length.

    What a round accepts depends only on its start position, and at most `caps` of it if it verified a part of its
    draft. The last round of either side may be truncated and is not compared. starts: as in `first_reach_mismatch`.
    """
    known = dict(zip(accumulate(theirs, initial=1), theirs[:-1], strict=False))
    for index, (length, start) in enumerate(zip(mine[:-1], starts, strict=False)):
        if min(known.get(start, length), caps[index] if caps else sys.maxsize) != length:
            return index
    return None
