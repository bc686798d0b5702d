"""Compares acceptance lengths round by round with the expected ones: at a fixed width with the reference's rounds, at
changing widths with the oracle's reach (correct consecutive drafts from each position)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from specmatrix.matrix.subjects.protocol import Served


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


class ChangedRepeat(NamedTuple):
    """A request whose round `place` has another number of tokens than that of `first`, an earlier one with its text."""

    request: Served
    place: int
    first: Served


def changed_repeats(served: Iterable[Served]) -> tuple[int, list[ChangedRepeat]]:
    """Number of rounds compared with those of the first request with the same prompt, and the requests of which one
    differs although both texts agree so far: what a round accepts follows from the text. Last rounds may be cut, and
    retractions move rounds; neither is compared."""
    firsts: dict[tuple[int, ...], Served] = {}
    compared, changed = 0, list[ChangedRepeat]()
    for one in served:
        if one.retractions or len(one.rounds) < 2:
            continue
        first = firsts.setdefault(one.tokens[: one.prompt], one)
        at = one.prompt + 1
        for place, (mine, due) in enumerate(zip(one.rounds[:-1], first.rounds[:-1], strict=False)):
            at += min(mine, due)
            if first is one or one.tokens[:at] != first.tokens[:at]:
                break
            compared += 1
            if mine != due:
                changed.append(ChangedRepeat(one, place, first))
                break
    return compared, changed
