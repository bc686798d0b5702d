"""Rounds beside those that are due: of one width beside others, of changing width beside the oracle's reach (how many
drafts in a row are right, wherever a round begins)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def oracle_rounds(reach: Sequence[int], widths: Sequence[int], emitted: int) -> tuple[int, ...]:
    """Tokens of each round, bonus included, to the `emitted`-th one, by rounds of these widths; the last width goes on.

    Ends where the oracle's knowledge does.
    """
    rounds: list[int] = []
    start = 0
    while start < min(emitted, len(reach)) and widths:
        width = widths[min(len(rounds), len(widths) - 1)]
        rounds.append(min(reach[start], width - 1) + 1)
        start += rounds[-1]
    return tuple(rounds)


def first_apart(mine: Sequence[int], widths: Sequence[int], reach: Sequence[int], retractions: int = 0) -> int | None:
    """The first round that is not as long as the oracle's would be from the same place with the same width.

    The last round may lie past what the oracle knows. A retracted request gets one token from the prefill that reads it
    again, no round, which moves all later rounds by one; `retractions` such moves may lie anywhere.
    """
    start, moves = 0, set(range(retractions + 1))
    for index, (length, width) in enumerate(zip(mine, widths, strict=True)):
        moves = {moved for moved in moves if _due(reach, start + moved, width) in (None, length)}
        if not moves:
            return index
        moves = set(range(min(moves), retractions + 1))
        start += length
    return None


def _due(reach: Sequence[int], start: int, width: int) -> int | None:
    return min(reach[start], width - 1) + 1 if start < len(reach) else None


def first_left(mine: Sequence[int], theirs: Sequence[int], retractions: int = 0) -> int | None:
    """The first round that begins where one of the oracle's does and has another length; the last round of either side
    may be cut by its end.

    What a round accepts depends only on where it begins. A retracted request gets one token from the prefill that
    reads it again, no round, which moves all later rounds by one; `retractions` such moves may lie anywhere.
    """
    known = dict(zip(accumulate(theirs, initial=0), theirs[:-1], strict=False))
    start, moves = 0, set(range(retractions + 1))
    for index, length in enumerate(mine[:-1]):
        moves = {moved for moved in moves if known.get(start + moved, length) == length}
        if not moves:
            return index
        moves = set(range(min(moves), retractions + 1))
        start += length
    return None
