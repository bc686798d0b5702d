"""Variants of a red cell: other cells with one axis changed, which show whether that axis matters to the failure."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice, product
from time import monotonic
from typing import Final, TypeAlias

from specmatrix.ci.cell_runs import CellRuns
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES, Axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.effective import effective
from specmatrix.reports.groups import MAX_FACTORED, Conditions, RedGroup, axis_of, meets, red_groups
from specmatrix.reports.schema import RED_STATES, Cause, CellResult, is_red

# Maximum number of rounds of choosing cells from the results so far, of cells that run, and of seconds.
PASSES: Final = 4
MAX_BESIDE: Final = 12
MAX_SECONDS: Final = 20.0
NODES: Final = "draft_tokens"
# Maximum cells per group and round, and candidates that they distinguish.
MAX_CELLS: Final = 10
MAX_CANDIDATES: Final = 32

Change: TypeAlias = tuple[str, str]


def causes(runs: CellRuns, found: Sequence[CellResult], today: str) -> dict[str, Cause]:
    """Run a few cells beside the red ones of a run, and return what is left of each group's candidate causes, by the id
    of its first cell. found: the run's records; those that are waived on `today` have no cause to find, and INFRA no
    axis to blame.
    """
    judged = [cell for cell in found if cell.state == "PASS" or (is_red(cell, today) and cell.state != "INFRA")]
    beside = [cell for cell in decided(runs, judged) if cell.state != "INFRA"]
    if not beside:
        return {}
    every, own = (*judged, *beside), {cell.id for cell in judged}
    groups = red_groups([cell for cell in every if is_red(cell, today)], [c for c in every if c.state == "PASS"])
    ran = len(beside), sum(cell.state == "PASS" for cell in beside)
    return {group.cells[0].id: Cause(group.factors, *ran) for group in groups if group.cells[0].id in own}


def decided(
    runs: CellRuns, found: Sequence[CellResult], most: int = MAX_BESIDE, seconds: float = MAX_SECONDS
) -> Generator[CellResult]:
    """The records of the cells that tell the candidate causes of each group of red cells apart, as they finish: at most
    `most`, none of which is estimated to take long, and after `seconds` no more.

    One or two axes of a group's first cell take other values, so that some candidates hold and others do not; where
    there is none yet, every axis off its default takes another value. Where one candidate is left, every axis that it
    does not name takes its default: if that cell is green, the candidate alone is not the cause. Ends when no such cell
    is left, or after `PASSES` times.
    """
    records, end = list(found), monotonic() + seconds
    for _ in range(PASSES):
        green = [cell for cell in records if cell.state == "PASS"]
        groups = red_groups([cell for cell in records if cell.state in RED_STATES], green)
        tried = {cell.id for cell in records}
        new: dict[str, Cell] = {}
        for group in groups[:MAX_FACTORED]:
            if group.factors or not green:
                for cell in variants(group, {*tried, *new}, find_tier(runs.job.options.tier).gpus):
                    new |= {cell.id: cell} if cell.seconds < seconds / 4 else {}
        left = most + len(found) - len(records)
        if not new or left <= 0 or monotonic() >= end:
            return
        with closing(runs(list(new.values())[:left])) as ran:
            for record in ran:
                records.append(record)
                yield record
                if monotonic() >= end:
                    return


def variants(group: RedGroup, tried: Collection[str], gpus: int = 0) -> list[Cell]:
    """Cells near the group's first one that tell its candidate causes apart, or test its only one, none already tried.

    Of several candidates each cell meets some and not others. Of one, it meets it with another axis at its default, or
    does not meet it on one axis. Without any, it has another value on one axis off its default. gpus: of the tier.
    """
    first = Cell.of(group.cells[0].axes)
    named = {axis_of(condition) for conditions in group.factors for condition in conditions}
    if len(group.factors) > 1:
        return _separating(first, named, group.factors[:MAX_CANDIDATES], tried, gpus)
    cells = []
    for axis in AXES:
        if axis.name in named:
            near = _near(first, [(change,) for change in _values(axis)], tried, gpus)
            cells += [cell for cell in near if not all(_met(cell, group.factors))][:1]
        elif first.values[axis.name] != axis.default:
            values = _values(axis)[:1] if named else _values(axis)
            cells += _near(first, [(change,) for change in values], tried, gpus)[:1]
    return cells


def _separating(
    first: Cell, named: Collection[str], factors: Sequence[Conditions], tried: Collection[str], gpus: int
) -> list[Cell]:
    """At most `MAX_CELLS` cells, each of which distinguishes candidates that no earlier cell does: with one of the
    `named` axes changed, plus another axis where one is not enough."""
    own = [change for axis in AXES if axis.name in named for change in _values(axis)]
    other = [change for axis in AXES for change in _values(axis)]
    found: list[Cell] = []
    alike = [list(range(len(factors)))]  # candidates that the cells found so far do not distinguish
    for changes in (zip(own), product(own, other)):
        if len(found) == MAX_CELLS or max(map(len, alike)) == 1:
            break
        met = {cell: _met(cell, factors) for cell in _near(first, changes, tried, gpus)}
        while met and len(found) < MAX_CELLS:
            best = max(met, key=lambda cell: sum(_apart(group, met[cell]) for group in alike))
            if not any(_apart(group, met[best]) for group in alike):
                break
            found.append(best)
            alike = [[i for i in group if met[best][i] is side] for group in alike for side in (True, False)]
    return found


def _met(cell: Cell, factors: Sequence[Conditions]) -> list[bool]:
    """Which of the candidates a cell meets."""
    predicted = prepare(cell).predicted
    values = effective(cell.values, None if isinstance(predicted, ConfigError) else predicted.as_dict())
    return [all(meets(condition, values) for condition in conditions) for conditions in factors]


def _apart(group: Sequence[int], met: Sequence[bool]) -> int:
    """The number of pairs in a group of candidates of which a cell meets exactly one."""
    some = sum(met[i] for i in group)
    return some * (len(group) - some)


def _values(axis: Axis) -> list[Change]:
    """The values of an axis, its default first."""
    return [(axis.name, value) for value in axis.names]


def _near(first: Cell, changes: Iterable[tuple[Change, ...]], tried: Collection[str], gpus: int) -> list[Cell]:
    """The cells of a tier with some axes changed that run and were not tried. A draft's number of nodes follows from
    its depth and width, so it is left to the engine where it does not fit another value."""
    found: dict[Cell, None] = {}
    for change in changes:
        cell = first._replace(**dict(change))
        found |= dict.fromkeys(islice(runnable((cell, cell._replace(**{NODES: "auto"}))), 1))
    return [cell for cell in of_gpus(list(found), gpus) if cell != first and cell.id not in tried]


def runnable(cells: Iterable[Cell]) -> Generator[Cell]:
    """Yield the cells that are in the matrix and must run as requested."""
    for cell in cells:
        try:
            expected = expect(cell)
        except ConfigError:
            continue
        if expected == "runs":
            yield cell
