"""Waivers: known failures that do not fail a run until they expire. Waived cells still run."""

from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.reports.schema import Waiver, WaiverRule

WAIVERS: Final[tuple[WaiverRule, ...]] = ()


def waiver_for(cell: Cell, rules: tuple[WaiverRule, ...] = WAIVERS) -> Waiver | None:
    """The first waiver whose selector matches the cell; reports check its expiry. ConfigError on a bad selector."""
    for rule in rules:
        if parse_selector(rule.cells)(cell):
            return Waiver(rule.reason, rule.expiry)
    return None
