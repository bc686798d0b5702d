"""Selects the few cells that exercise a fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.selector import parse_selector

PER_SELECTOR: Final = 2


def pick(words: Sequence[str], locked: Sequence[Cell], fault: str) -> list[Cell]:
    """Cells for ids and selectors, without duplicates; a selector takes its PER_SELECTOR cheapest cells of `locked`.

    ConfigError for an invalid cell id, and for a selector that matches nothing.
    """
    found: dict[Cell, None] = {}
    for text in words:
        if "=" in text or " " in text:
            matches = parse_selector(text)
            cells = sorted((cell for cell in locked if matches(cell)), key=lambda cell: cell.seconds)[:PER_SELECTOR]
        else:
            cells = [Cell.from_id(text)]
            expect(cells[0])
        if not cells:
            raise ConfigError(f"fault {fault}: {text!r} matches none of the {len(locked)} cells of the stage")
        found |= dict.fromkeys(cells)
    return list(found)
