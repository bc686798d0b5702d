"""A source-level fault: its text, replacement and origin, the cells that exercise it, the gates that must detect it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.faults.patch import Edit, Patch
from specmatrix.reports.schema import REFERENCE

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


__all__ = ["Edit", "Fault"]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One defect of the catalogue.

    category: of the defect. origin: the report or rule that it is based on. within, old, new: the defect (see `Edit`);
    also: further replacements, such as removing an engine check that would raise before a gate runs. expected: gates of
    which at least one must fail. cells: ids or selectors (up to two cells each) of the smallest cells that exercise it.
    why: its effect. tier: where the cells exercise it; also_on: further tiers. subject: the engine that the cells run
    on; `sglang` and the `openai` ones are servers of the patched engine itself. operations: kernels whose laws it
    breaks (`matrix.faults.kernels`); its cells then run on a GPU only, because a CPU does not run these kernels.
    """

    id: str
    category: str
    origin: str
    within: str
    old: str
    new: str
    expected: tuple[str, ...]
    cells: tuple[str, ...]
    why: str
    also: tuple[Edit, ...] = ()
    tier: str = "cpu"
    also_on: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    subject: str = REFERENCE

    def runs_on(self, tier: str) -> bool:
        """Whether the fault's cells exercise it on this tier."""
        return tier in (self.tier, *self.also_on)

    @property
    def patch(self) -> Patch:
        """All replacements, the defect first."""
        return Patch(f"fault {self.id}", (Edit(self.within, self.old, self.new), *self.also))

    def chosen(self, locked: Sequence[Cell]) -> list[Cell]:
        """The cells to run; selectors choose from `locked`. ConfigError if a selector matches none."""
        return pick(self.cells, locked, self.id)
