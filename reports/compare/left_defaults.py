"""Values that cells ran because of a default, and that no cell reaches by default any longer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from specmatrix.reports.compare.cell_state import ChoiceChange, LeftDefault
from specmatrix.reports.effective import ASKED_FIELDS, RESOLVED_FIELD, Value, word
from specmatrix.reports.store import Report

_RESOLVED: Final = {asked: field for field, names in ASKED_FIELDS.items() for asked in names}
_AXIS: Final = {field: axis for axis, field in RESOLVED_FIELD.items()}


def left_defaults(base: Report, head: Report, choices: Iterable[ChoiceChange]) -> tuple[LeftDefault, ...]:
    """For each automatic value of `choices` that differs in head: the effective values that cells had with it."""
    moved: dict[tuple[str, str], list[str]] = {}
    for change in choices:
        if change.base and change.head and change.base != change.head:
            moved.setdefault((change.field, change.base), []).extend(change.cells)
    return tuple(row for (asked, value), cells in moved.items() for row in _left(base, head, asked, value, cells))


def _left(base: Report, head: Report, asked: str, value: str, cells: list[str]) -> Iterator[LeftDefault]:
    field = _RESOLVED.get(asked, asked)
    axis = _AXIS.get(field, field)
    relying = {
        number: any(reason.field == asked for reason in start.reasons)
        for number, start in enumerate(head.starts)
        if start.resolved and word(start.resolved.get(field)) == value
    }
    mine = [cell for cell in head.lines.values() if cell.start in relying and cell.state == "PASS"]
    by_default = [cell.id for cell in mine if relying[cell.start]]
    met = _values(base, [cell for cell in cells if base.effective(cell) is not None])
    left = [item for item in met.keys() - _values(head, by_default).keys() if item[0] != axis]
    if left:
        explicit = tuple(cell.id for cell in mine if not relying[cell.start])
        yield LeftDefault(axis, value, tuple(sorted(left)), tuple(cells), explicit, not by_default)


def _values(report: Report, cells: Iterable[str]) -> dict[Value, None]:
    return {item: None for cell in cells for item in report.values(cell).items()}
