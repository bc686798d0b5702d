"""Variants of a red cell: other cells with one axis changed, which show whether that axis matters to the failure."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Final

from specmatrix.ci.cell_runs import CellRuns
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.run.tiers import tier as find_tier
from specmatrix.reports.groups import MOST_FACTORED, RedGroup, axis_of, red_groups
from specmatrix.reports.schema import RED_STATES, CellResult

# Times that every axis in question takes another value.
PASSES: Final = 4
NODES: Final = "draft_tokens"


def decided(runs: CellRuns, found: Sequence[CellResult]) -> Generator[CellResult]:
    """The records of the cells that tell the candidate causes of each group of red cells apart, as they finish.

    An axis that a candidate names, or where there is none yet every axis off its default, takes another value while
    the rest of a group's first cell stays. Where one candidate is left, every axis that it does not name takes its
    default: if that cell is green, the candidate alone is not the cause. Ends when no such cell is left.
    """
    records = list(found)
    for _ in range(PASSES):
        green = [cell for cell in records if cell.state == "PASS"]
        groups = red_groups([cell for cell in records if cell.state in RED_STATES], green)
        tried = {cell.id for cell in records}
        new: dict[str, Cell] = {}
        for group in groups[:MOST_FACTORED]:
            if group.factors or not green:
                for cell in of_gpus(variants(group, {*tried, *new}), find_tier(runs.job.tier).gpus):
                    new[cell.id] = cell
        if not new:
            return
        for record in runs(list(new.values())):
            records.append(record)
            yield record


def variants(group: RedGroup, tried: Collection[str]) -> list[Cell]:
    """The group's first cell with one axis in question changed, one cell per axis, none of those already tried."""
    first = Cell.of(group.cells[0].axes)
    named = {axis_of(condition) for conditions in group.factors for condition in conditions}
    alone = len(group.factors) == 1
    cells = []
    for axis in AXES:
        off_default = first.values[axis.name] != axis.default
        if (off_default and axis.name not in named) if alone or not named else axis.name in named:
            values = (axis.default,) if alone else tuple(dict.fromkeys((axis.default, *axis.names)))
            # A draft's number of nodes follows from its depth and width, so it may not fit another value.
            others = (
                first._replace(**{axis.name: value, **nodes}) for value in values for nodes in ({}, {NODES: "auto"})
            )
            cells += list(runnable(cell for cell in others if cell != first and cell.id not in tried))[:1]
    return cells


def runnable(cells: Iterable[Cell]) -> Generator[Cell]:
    """Those of the cells that the matrix has and that must run as they are asked."""
    for cell in cells:
        try:
            expected = expect(cell)
        except ConfigError:
            continue
        if expected == "runs":
            yield cell
