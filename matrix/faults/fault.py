"""A source-level fault: where it is, what it replaces, where it comes from, and who must see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specmatrix.engine.core.errors import ConfigError
from specmatrix.matrix.cell import Cell
from specmatrix.matrix.faults.selection import pick


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement: `old` stands exactly once in `file` (relative to the root of the repository)."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One defect of the catalogue.

    klass: class of defect. origin: the report that it repeats. file, old, new: the defect; also: further replacements
    where one place alone would be caught by a guard. expected: gates that must fail, at least one of them.
    cells: ids or selectors (up to two cells each) of the smallest cells that exercise it. why: what it does, in words.
    tier: where the cells must run to exercise it; also_on: further tiers.
    operations: kernels whose laws it breaks (`matrix.faults.laws`). Cells of such a fault run on a GPU only, as other
    forms of the operations run on a CPU.
    """

    id: str
    klass: str
    origin: str
    file: str
    old: str
    new: str
    expected: tuple[str, ...]
    cells: tuple[str, ...]
    why: str
    also: tuple[Edit, ...] = ()
    tier: str = "cpu"
    also_on: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()

    def runs_on(self, tier: str) -> bool:
        """Whether its cells exercise it on this tier."""
        return tier in (self.tier, *self.also_on)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Every replacement, the defect first."""
        return (Edit(self.file, self.old, self.new), *self.also)

    def chosen(self, locked: Sequence[Cell]) -> list[Cell]:
        """The cells to run, from the explicit ids and the cells of a stage. ConfigError if a selector finds none."""
        return pick(self.cells, locked, self.id)

    def apply(self, root: Path) -> None:
        """Plant the fault in the tree at `root`. ConfigError if an old text does not stand there exactly once."""
        for edit in self.edits:
            path = root / edit.file
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            found = text.count(edit.old)
            if found != 1:
                first = edit.old.strip().splitlines()[0]
                raise ConfigError(
                    f"fault {self.id} does not apply: {first!r} stands {found} times in {edit.file}, not once; "
                    "move the fault along with the code"
                )
            path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
