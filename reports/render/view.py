"""What every page about one run shows, computed once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from specmatrix.reports.compare.cell_state import Factor
from specmatrix.reports.compare.common_factors import common_factors
from specmatrix.reports.compare.rewrites import signature
from specmatrix.reports.effective import effective
from specmatrix.reports.schema import RED_STATES, CellResult, Header
from specmatrix.reports.store import Report
from specmatrix.reports.summary import Summary, is_red, summarise


@dataclass(frozen=True, slots=True)
class RewriteRow:
    """A rewrite that the run saw, and how many cells declare it (`expect` is "rewritten")."""

    signature: str
    reason: str
    cells: int
    declared: int


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A value that the engine chose by itself, with its reason, in `cells` cells."""

    field: str
    value: str
    because: str
    cells: int


@dataclass(frozen=True, slots=True)
class RunView:
    """One run. `red` cells come first in `cells`, then waived ones, then those that the subject does not support, then
    the rest in file order."""

    header: Header
    summary: Summary
    cells: tuple[CellResult, ...]
    red: tuple[CellResult, ...]
    waived: tuple[CellResult, ...]
    unsupported: tuple[CellResult, ...]
    factors: tuple[Factor, ...]
    rewrites: tuple[RewriteRow, ...]
    choices: tuple[ChoiceRow, ...]

    @property
    def verdict(self) -> str:
        """ "green" if no cell is red and no probe, else "red"; a run that ran no cell proves nothing and is red."""
        return "green" if not self.red and self.summary.ran and self.summary.probes.state != "FAIL" else "red"


def view(report: Report) -> RunView:
    """Everything that the pages of `report` show. Raises ReportError if a line is broken."""
    cells = list(report)
    red = [cell for cell in cells if is_red(cell, report.header.created)]
    names = {cell.id for cell in red}
    waived = [cell for cell in cells if cell.state in RED_STATES and cell.id not in names]
    unsupported = [cell for cell in cells if cell.state == "UNSUPPORTED"]
    green = [cell for cell in cells if cell.state == "PASS"]
    judged = [cell for cell in red if cell.state != "INFRA"]
    return RunView(
        header=report.header,
        summary=summarise(report),
        cells=(*red, *waived, *unsupported, *green),
        red=tuple(red),
        waived=tuple(waived),
        unsupported=tuple(unsupported),
        factors=common_factors([_values(cell) for cell in judged], [_values(cell) for cell in green]),
        rewrites=_rewrites(cells),
        choices=_choices(cells),
    )


def _values(cell: CellResult) -> dict[str, str]:
    return effective(cell.axes, cell.resolved)


def _rewrites(cells: list[CellResult]) -> tuple[RewriteRow, ...]:
    groups: dict[tuple[str, str], list[CellResult]] = defaultdict(list)
    for cell in cells:
        for rewrite in cell.rewrites:
            groups[signature(rewrite), rewrite.reason].append(cell)
    return tuple(
        RewriteRow(name, reason, len(group), sum(cell.expect == "rewritten" for cell in group))
        for (name, reason), group in sorted(groups.items())
    )


def _choices(cells: list[CellResult]) -> tuple[ChoiceRow, ...]:
    found = Counter((r.field, str(r.value), r.because) for cell in cells for r in cell.reasons)
    return tuple(ChoiceRow(*key, cells=number) for key, number in sorted(found.items()))
