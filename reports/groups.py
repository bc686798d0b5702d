"""Groups of equal failures, each with the factors that its cells share and no green cell has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from specmatrix.reports.common_factors import Conditions, common_factors, is_number, shared
from specmatrix.reports.effective import effective
from specmatrix.reports.schema import Cause, CellResult
from specmatrix.reports.wording import count, failure, shorten

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
