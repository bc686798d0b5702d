"""Common factors of failing cells: the shortest conjunctions of axis values that all of them and no passing cell meets.

Conditions are `axis=value`, `axis != value` and, where every value of the axis is a number, `axis > v` and `axis < v`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import and_
from typing import Final

from specmatrix.reports.covered import holders
from specmatrix.reports.wording import count

MAX_CONDITIONS: Final = 4
# Candidates that a sentence names.
MAX_NAMED: Final = 3

Values = Mapping[str, str]
Conditions = tuple[str, ...]


def common_factors(failing: Sequence[Values], passing: Sequence[Values]) -> tuple[Conditions, ...]:
    """The shortest conjunctions that every failing and no passing cell meets, all of one length, up to
    `MAX_CONDITIONS`; empty if there are none, or nothing to compare. One failure has many of them: each may be the
    cause."""
    if not failing or not passing:
        return ()
    everything, all_failing = (1 << len(failing) + len(passing)) - 1, (1 << len(failing)) - 1
    met: list[tuple[str, int]] = []  # conditions that all failing cells meet, with a bit mask of the cells that do
    named = {axis for cell in failing for axis in cell}
    for axis, values in _holders([*failing, *passing]).items():
        if axis not in named:
            continue
        # Of conditions that the same cells meet, keep the first; a threshold is more specific than "not this value".
        rows = {
            mask: text for text, mask in reversed((*_thresholds(axis, values), *_equalities(axis, values, everything)))
        }
        own = [
            (text, mask)
            for mask, text in reversed(rows.items())
            if mask & all_failing == all_failing and mask != everything
        ]
        # A condition implies any other on its axis whose cells include its own.
        met += [(text, mask) for text, mask in own if not any(one & ~mask == 0 for _, one in own if one != mask)]
    for size in range(1, MAX_CONDITIONS + 1):
        found = [
            tuple(text for text, _ in rules)
            for rules in combinations(met, size)
            if not reduce(and_, (mask for _, mask in rules)) & ~all_failing
        ]
        if found:
            return tuple(found)
    return ()


def shared(factors: Sequence[Conditions], failing: int, passing: int) -> str:
    """The end of a sentence on failing cells: `, all at topk > 1 x batch=pair, where none of 7 passing cells is`."""
    named = "; or at ".join(" x ".join(each) for each in factors[:MAX_NAMED])
    more = len(factors) - MAX_NAMED
    text = f"{', all' if failing > 1 else ','} at {named}" + (f"; or at {more} more" if more > 0 else "")
    return f"{text}, where none of {count(passing, 'passing cell')} is"


def _holders(cells: Sequence[Values]) -> dict[str, dict[str, int]]:
    """Axis to value to a bit mask of the cells that have it."""
    found: dict[str, dict[str, int]] = {}
    for (axis, value), mask in holders(cells).items():
        found.setdefault(axis, {})[value] = mask
    return found


def _thresholds(axis: str, held: Mapping[str, int]) -> list[tuple[str, int]]:
    """`axis > v` and `axis < v` between neighbouring values, if all values are numbers."""
    if len(held) < 3 or not all(is_number(value) for value in held):
        return []
    ordered = sorted(held, key=float)
    # A threshold that leaves one value is clearer as an equality.
    above = [(f"{axis} > {ordered[cut - 1]}", _union(held, ordered[cut:])) for cut in range(1, len(ordered) - 1)]
    below = [(f"{axis} < {ordered[cut]}", _union(held, ordered[:cut])) for cut in range(2, len(ordered))]
    return above + below


def _equalities(axis: str, held: Mapping[str, int], everything: int) -> list[tuple[str, int]]:
    rows = [(f"{axis}={value}", mask) for value, mask in held.items()]
    return rows + [(f"{axis} != {value}", everything & ~mask) for value, mask in held.items()]


def _union(held: Mapping[str, int], values: Sequence[str]) -> int:
    mask = 0
    for value in values:
        mask |= held[value]
    return mask


def is_number(text: str) -> bool:
    """Whether a value has an order."""
    return text.replace(".", "", 1).isdecimal()
