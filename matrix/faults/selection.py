"""From the words of a fault to the few cells that exercise it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.selector import parse_selector

PER_SELECTOR: Final = 2


def pick(words: Sequence[str], locked: Sequence[Cell], who: str) -> list[Cell]:
    """Cells for ids and selectors, without repeats; a selector takes its cheapest cells of `locked`.

    ConfigError for an id that is no cell, and for a selector that finds nothing.
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
            raise ConfigError(f"fault {who} finds no cell for {text!r} among the {len(locked)} cells of the stage")
        found |= dict.fromkeys(cells)
    return list(found)
