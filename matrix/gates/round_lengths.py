"""Verify rounds of requests beside those of the oracle, and what their lengths come to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple

from specmatrix.matrix.gates.gate import Blame, Number
from specmatrix.matrix.gates.session import due_tokens, first_reach_mismatch, first_round_mismatch
from specmatrix.reports.stats import ratio_change
from specmatrix.reports.wording import count

# The oracle's rounds per window of an engine's life.
WINDOW: Final = 100


@dataclass(frozen=True)
class Rounds:
    """Tokens and verify rounds of one prompt over the range that both sides decoded; a partial round counts as a
    fraction.
    """

    emitted: float
    engine: float
    oracle: float


class RoundsPair(NamedTuple):
    """Tokens per verify round of one request from engine and oracle, and how many tokens may be of no round.

    starts: index of each round's first token. question: index of its prompt. widths, reach: with adaptive depth, each
    round's width and the oracle's correct drafts from each position. caps: most tokens of each round that verifies the
    part of a draft that it has room for. first: the first round begins with the first token, which a prefill yields.
    """

    mine: Sequence[int]
    theirs: Sequence[int]
    moves: int
    starts: Sequence[int]
    widths: Sequence[int] = ()
    reach: Sequence[int] = ()
    request: str = ""
    question: int = 0
    caps: Sequence[int] = ()
    first: bool = False

    def whole(self, last: int | None, most: int) -> Sequence[int]:
        """The rounds up to `last` before the first with a cap below `most`."""
        return self.mine[: next((place for place, cap in enumerate(self.caps) if cap < most), last)]

    def mismatch(self) -> int | None:
        """Index of the first round whose length differs from the oracle's; None if none."""
        if self.widths:
            return first_reach_mismatch(self.mine, self.widths, self.reach, self.starts)
        return first_round_mismatch(self.mine, self.theirs, self.starts, self.caps)

    def blame(self) -> Blame:
        """Blames the request at the first token of the first differing round."""
        place = self.mismatch()
        if place is None:
            return Blame(self.request)
        start = self.starts[place]
        known = dict(zip(accumulate(self.theirs, initial=1), self.theirs, strict=False))
        due = due_tokens(self.reach, start - 1, self.widths[place]) if self.widths else known.get(start)
        note = (
            ""
            if due is None
            else f"verify round {place + 1} has {count(self.mine[place], 'token')}, the oracle's {due}"
        )
        return Blame(self.request, start, note=note)


def same_range(mine: Sequence[int], theirs: Sequence[int]) -> Rounds:
    """Restrict both sides to the tokens that both decoded, so that a shorter answer does not look like lower
    acceptance.
    """
    emitted = min(sum(mine), sum(theirs))
    return Rounds(emitted, _rounds(mine, emitted), _rounds(theirs, emitted))


def _rounds(lengths: Sequence[int], emitted: int) -> float:
    """Rounds up to the `emitted`-th token; a partial last round counts as a fraction."""
    left, rounds = emitted, 0.0
    for length in lengths:
        rounds += min(1.0, left / length)
        left -= min(left, length)
    return rounds


def by_age(measured: Iterable[Rounds]) -> list[tuple[float, list[Rounds]]]:
    """Requests in the order of sending, in windows of `WINDOW` of the oracle's rounds and more, each with their number
    before it. The last has half as many at least, as one answer's rounds say little."""
    windows, before = [(0.0, list[Rounds]())], 0.0
    for one in measured:
        if before - windows[-1][0] >= WINDOW:
            windows.append((before, []))
        windows[-1][1].append(one)
        before += one.oracle
    if len(windows) > 1 and 2 * (before - windows[-1][0]) < WINDOW:
        windows[-2][1].extend(windows.pop()[1])
    return windows


def window_ratio(window: Sequence[Rounds]) -> tuple[float, tuple[float, float]]:
    """The ratio engine / oracle of a window and its interval, or the ratio itself twice."""
    ratio = sum(one.oracle for one in window) / sum(one.engine for one in window)
    return ratio, ratio_interval(window) or (ratio, ratio)


def ratio_interval(measured: Sequence[Rounds]) -> tuple[float, float] | None:
    """95 % interval of the ratio engine / oracle; None for a single prompt, or if all prompts changed by the same
    share.
    """
    if len(measured) == 1:
        return None
    emitted = [one.emitted for one in measured]
    change = ratio_change((emitted, [one.oracle for one in measured]), (emitted, [one.engine for one in measured]))
    return None if change.interval is None else (1 + change.interval[0], 1 + change.interval[1])


def length_numbers(measured: Sequence[Rounds], pairs: Sequence[RoundsPair]) -> dict[str, Number]:
    """per_position: how often each draft was accepted where those before it were and it was verified; per_round: in
    how many rounds it was accepted, whether verified or not."""
    emitted = sum(one.emitted for one in measured)
    engine, oracle = sum(one.engine for one in measured), sum(one.oracle for one in measured)
    verified = [(pair.mine, (pair.caps or pair.widths)[: len(pair.mine)]) for pair in pairs]
    rounds = [one for pair in verified for one in zip_longest(*pair, fillvalue=sys.maxsize)]
    drafts = [length - 1 for length, _ in rounds]
    reached = [sum(length > j and cap > j + 1 for length, cap in rounds) for j in range(max(drafts) + 1)]
    return {
        "length": emitted / engine,
        "reference": emitted / oracle,
        "ratio": oracle / engine,
        "prompts": len(measured),
        "per_position": [round(sum(d > j for d in drafts) / reached[j], 4) for j in range(max(drafts))],
        "per_round": [round(sum(d > j for d in drafts) / len(drafts), 4) for j in range(max(drafts))],
        "emitted": [one.emitted for one in measured],
        "rounds": [one.engine for one in measured],
    }
