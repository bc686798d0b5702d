"""Common factors of failing cells: short conjunctions of axis values that match them and few passing cells.

Conditions are `axis=value`, `axis != value` and, where every value of the axis is a number, `axis > v` and `axis <
v`. A beam search joins up to `MAX_CONDITIONS` of them, scored by Fisher's exact test and corrected for all rules tried
(Benjamini-Hochberg). Failures that the first factor does not match are searched again, so that two defects give two
factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import and_
from typing import Final, NamedTuple

from specmatrix.reports.compare.cell_state import FALSE_DISCOVERY_RATE, Factor
from specmatrix.reports.covered import holders
from specmatrix.reports.stats import benjamini_hochberg, fisher_log

MAX_CONDITIONS: Final = 4
MAX_FACTORS: Final = 4
BEAM: Final = 12

Values = Mapping[str, str]


class _Condition(NamedTuple):
    """A conjunction, and a bit mask of the cells that it matches (failing cells first)."""

    conditions: tuple[str, ...]
    cells: int


def common_factors(failing: Sequence[Values], passing: Sequence[Values]) -> tuple[Factor, ...]:
    """The common factors, the strongest first; empty if none is significant."""
    conditions = _conditions([*failing, *passing])
    all_failing = (1 << len(failing)) - 1
    open_cells = all_failing
    found: list[Factor] = []
    while open_cells and len(found) < MAX_FACTORS:
        rule, p = _best(conditions, open_cells, all_failing, len(failing), len(passing))
        if rule is None:
            break
        order = [each.conditions[0] for each in conditions]
        named = _Condition(tuple(sorted(rule.conditions, key=order.index)), rule.cells)
        found.append(_factor(named, p, all_failing, len(failing), len(passing)))
        open_cells &= ~rule.cells
    return tuple(found)


def exact_factors(failing: Sequence[Values], passing: Sequence[Values]) -> tuple[tuple[str, ...], ...]:
    """The shortest conjunctions that every failing and no passing cell meets, all of one length, up to
    `MAX_CONDITIONS`; empty if there are none, or nothing to compare.

    Unlike `common_factors` they need no significance, so that one failure has many of them: each may be the cause.
    """
    if not failing or not passing:
        return ()
    everything, all_failing = (1 << len(failing) + len(passing)) - 1, (1 << len(failing)) - 1
    shared: list[_Condition] = []
    named = {axis for cell in failing for axis in cell}
    for axis, values in _holders([*failing, *passing]).items():
        if axis not in named:
            continue
        # Of conditions that the same cells meet, keep the first; a threshold is more specific than "not this value".
        rows = {
            mask: text for text, mask in reversed((*_thresholds(axis, values), *_equalities(axis, values, everything)))
        }
        own = [
            _Condition((text,), mask)
            for mask, text in reversed(rows.items())
            if mask & all_failing == all_failing and mask != everything
        ]
        # A condition implies any other on its axis whose cells include its own.
        shared += [rule for rule in own if not any(one.cells & ~rule.cells == 0 for one in own if one is not rule)]
    for size in range(1, MAX_CONDITIONS + 1):
        found = [
            tuple(rule.conditions[0] for rule in rules)
            for rules in combinations(shared, size)
            if not reduce(and_, (rule.cells for rule in rules)) & ~all_failing
        ]
        if found:
            return tuple(found)
    return ()


def _conditions(cells: Sequence[Values]) -> list[_Condition]:
    """Every condition that some but not all cells meet."""
    everything = (1 << len(cells)) - 1
    rules: list[_Condition] = []
    for axis, values in _holders(cells).items():
        for text, mask in (*_thresholds(axis, values), *_equalities(axis, values, everything)):
            if 0 < mask < everything and all(mask != rule.cells for rule in rules):
                rules.append(_Condition((text,), mask))
    return rules


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


def _best(
    conditions: Sequence[_Condition], open_cells: int, all_failing: int, failing: int, passing: int
) -> tuple[_Condition | None, float]:
    """The rule with the lowest p value over the unexplained failures and all passing cells, if significant."""
    explained = all_failing & ~open_cells
    total = failing + passing - explained.bit_count()
    scores: dict[_Condition, float] = {}

    def score(rule: _Condition) -> tuple[float, int]:
        if rule not in scores:
            hits, matching = (rule.cells & open_cells).bit_count(), (rule.cells & ~explained).bit_count()
            scores[rule] = fisher_log(hits, open_cells.bit_count(), matching, total)
        return scores[rule], len(rule.conditions)

    beam = sorted(conditions, key=score)[:BEAM]
    for _ in range(MAX_CONDITIONS - 1):
        wider = [
            _Condition((*rule.conditions, *extra.conditions), rule.cells & extra.cells)
            for rule in beam
            for extra in conditions
            if rule.cells & extra.cells not in (rule.cells, 0)
        ]
        # Of rules that match the same cells, keep the first, which is the shortest.
        distinct: dict[int, _Condition] = {}
        for rule in (*beam, *wider):
            distinct.setdefault(rule.cells, rule)
        beam = sorted(distinct.values(), key=score)[:BEAM]
    if not beam:
        return None, 1.0
    tried = [math.exp(value) for value in scores.values()]
    discoveries = benjamini_hochberg(tried, FALSE_DISCOVERY_RATE)
    found = discoveries[list(scores).index(beam[0])]
    return (beam[0], min(1.0, math.exp(scores[beam[0]]) * len(tried))) if found else (None, 1.0)


def _factor(rule: _Condition, p: float, all_failing: int, failing: int, passing: int) -> Factor:
    hits, misses = (rule.cells & all_failing).bit_count(), (rule.cells & ~all_failing).bit_count()
    text = f"red at {' x '.join(rule.conditions)}: {hits} of {failing} failing cells, {misses} of {passing} passing"
    return Factor(text, rule.conditions, hits, failing, misses, passing, p)
