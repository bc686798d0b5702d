"""Groups of equal failures, each with the factors that its cells share and no green cell has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import and_, or_
from types import MappingProxyType
from typing import Final, NamedTuple

from specmatrix.reports.effective import effective
from specmatrix.reports.schema import Cause, CellResult
from specmatrix.reports.summary import holders
from specmatrix.reports.wording import count, failure, shorten

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
    by_axis: dict[str, dict[str, int]] = {}  # axis to value to a bit mask of the cells that have it
    for (axis, value), mask in holders([*failing, *passing]).items():
        by_axis.setdefault(axis, {})[value] = mask
    for axis, values in by_axis.items():
        if axis not in named:
            continue
        # Of conditions that the same cells meet, keep the first; a threshold is more specific than "not this value".
        conditions = (*_thresholds(axis, values), *_equalities(axis, values, everything))
        rows = {mask: text for text, mask in reversed(conditions) if mask != everything}
        own = [(text, mask) for mask, text in reversed(rows.items()) if mask & all_failing == all_failing]
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


def _thresholds(axis: str, held: Mapping[str, int]) -> list[tuple[str, int]]:
    """`axis > v` and `axis < v` between neighbouring values, if all values are numbers."""
    if len(held) < 3 or not all(is_number(value) for value in held):
        return []
    ordered = sorted(held, key=float)
    masks = [held[value] for value in ordered]
    # A threshold that leaves one value is clearer as an equality.
    above = [(f"{axis} > {ordered[cut - 1]}", reduce(or_, masks[cut:])) for cut in range(1, len(ordered) - 1)]
    below = [(f"{axis} < {ordered[cut]}", reduce(or_, masks[:cut])) for cut in range(2, len(ordered))]
    return above + below


def _equalities(axis: str, held: Mapping[str, int], everything: int) -> list[tuple[str, int]]:
    rows = [(f"{axis}={value}", mask) for value, mask in held.items()]
    return rows + [(f"{axis} != {value}", everything & ~mask) for value, mask in held.items()]


def is_number(text: str) -> bool:
    """Whether a value has an order."""
    return text.replace(".", "", 1).isdecimal()


# Maximum number of groups whose common factors are searched, the largest first.
MAX_FACTORED: Final = 4
# Names of requests, numbers and a request's logit rules, which differ between equal failures.
_VARYING: Final = re.compile(r"\b[qwd]\d+(?:\.\w+)*\b|\d[\d.,]*|'[^']*'| under [\w, ]+")

NO_CAUSES: Final[Mapping[str, Cause]] = MappingProxyType({})


class RedGroup(NamedTuple):
    """Red cells with an equal failure: the same first red gate or error, with the same message up to what varies.

    factors: the shortest conjunctions of axis values that all of them and none of the `passing` cells have; any of them
    may be the cause. beside: how many more cells ran, only to tell the candidates apart.
    """

    cells: tuple[CellResult, ...]
    factors: tuple[Conditions, ...]
    passing: int = 0
    beside: int = 0

    @property
    def text(self) -> str:
        """The group in a sentence."""
        first = self.cells[0]
        what = f"{count(len(self.cells), 'red cell')} with {failure_name(first)}"
        ran = f" ({count(self.beside, 'more cell')} ran to tell causes apart)" * bool(self.beside)
        return what + (shared(self.factors, len(self.cells), self.passing) + ran) * bool(self.factors)


def red_groups(
    red: Sequence[CellResult], green: Sequence[CellResult], causes: Mapping[str, Cause] = NO_CAUSES
) -> tuple[RedGroup, ...]:
    """The groups of red cells, the largest first; those of one size in the order of their first cells. causes: known
    ones, by the id of a group's first cell."""
    found: dict[str, list[CellResult]] = {}
    for cell in red:
        found.setdefault(kind_of(cell), []).append(cell)
    passing = [effective(cell.axes, cell.start.resolved) for cell in green]
    groups: list[RedGroup] = []
    for cells in sorted(found.values(), key=len, reverse=True):
        factored = len(groups) < MAX_FACTORED
        failing = [effective(cell.axes, cell.start.resolved) for cell in cells]
        known = causes.get(cells[0].id) or Cause(common_factors(failing, passing) if factored else ())
        groups.append(RedGroup(tuple(cells), known.factors, len(green) + known.passing, known.ran))
    return tuple(groups)


def axis_of(condition: str) -> str:
    """The axis of a condition such as `topk=4`, `topk != 1` or `topk > 1`."""
    return re.split(r"[ =]", condition, maxsplit=1)[0]


def meets(condition: str, values: Mapping[str, str]) -> bool:
    """Whether a cell with these effective values meets a condition; `<` and `>` hold for numbers only."""
    axis = axis_of(condition)
    sign, value = condition.removeprefix(axis).lstrip()[:1], re.split(r"=|>|<", condition, maxsplit=1)[1].lstrip()
    found = values.get(axis)
    if found is None or sign in "=!":
        return found is not None and (found == value) is (sign == "=")
    return is_number(found) and (float(found) > float(value) if sign == ">" else float(found) < float(value))


def kind_of(cell: CellResult) -> str:
    """The key of equal failures: the first red gate and its message without what varies, or the error."""
    gate = next((gate for gate in cell.gates if gate.state != "PASS"), None)
    text = f"{gate.name} {gate.state} {gate.message}" if gate and not cell.error else cell.error or cell.state
    return _VARYING.sub("", text)


def failure_name(cell: CellResult) -> str:
    """The first red gate, or the error, of a cell in a few words."""
    gate = next((gate for gate in cell.gates if gate.state != "PASS"), None)
    return f"{gate.name} {gate.state}" if gate and not cell.error else shorten(failure(cell), 80)
