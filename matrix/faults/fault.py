"""A source-level fault: its source text, replacement, origin, and the gates that must detect it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.selection import pick


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a definition: a function, a class, or a constant of a module or class.

    within: the definition's qualified name without its module (`Ledger.settle`), so that moving a module changes no
    fault. old: text that occurs exactly once in all definitions of that name. new: its replacement.
    """

    within: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One defect of the catalogue.

    klass: class of defect. origin: the report or rule that it is based on. within, old, new: the defect (see `Edit`);
    also: further replacements, such as removing an engine check that would raise before a gate runs. expected: gates
    of which at least one must fail. cells: ids or selectors (up to two cells each) of the smallest cells that exercise
    it. why: its effect. tier: the tier on which the cells exercise it; also_on: further tiers.
    operations: kernels whose laws it breaks (`matrix.faults.kernels`); its cells then run on a GPU only, because a CPU
    does not run these kernels.
    """

    id: str
    klass: str
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

    def runs_on(self, tier: str) -> bool:
        """Whether the fault's cells exercise it on this tier."""
        return tier in (self.tier, *self.also_on)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All replacements, the defect first."""
        return (Edit(self.within, self.old, self.new), *self.also)

    def chosen(self, locked: Sequence[Cell]) -> list[Cell]:
        """The cells to run; selectors choose from `locked`. ConfigError if a selector matches none."""
        return pick(self.cells, locked, self.id)

    def changes(self, root: Path) -> dict[Path, str]:
        """New texts of the files under `root` that the fault changes. ConfigError if it does not apply."""
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
        changed: dict[Path, str] = {}
        for edit in self.edits:
            found = [(path, at) for path, text in texts.items() for at in _places(text, edit)]
            if len(found) != 1:
                first = edit.old.strip().splitlines()[0]
                raise ConfigError(
                    f"fault {self.id} does not apply: {first!r} occurs {len(found)} times in {edit.within}, not once; "
                    "update the fault to match the code"
                )
            [(path, at)] = found
            text = texts[path]
            changed[path] = texts[path] = text[:at] + edit.new + text[at + len(edit.old) :]
        return changed

    def apply(self, root: Path) -> list[Path]:
        """Plant the fault in the tree at `root`; the files it changed. ConfigError if it does not apply."""
        changed = self.changes(root)
        for path, text in changed.items():
            path.write_text(text, encoding="utf-8")
        return list(changed)


def _places(text: str, edit: Edit) -> set[int]:
    """Offsets in a source text where `edit` applies."""
    if edit.old not in text or edit.within.rpartition(".")[2] not in text:
        return set()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    places = set()
    for name, first, last in _definitions(ast.parse(text)):
        if name == edit.within:
            at = text.find(edit.old, starts[first - 1], starts[last])
            while at >= 0:
                places.add(at)
                at = text.find(edit.old, at + 1, starts[last])
    return places


def _definitions(node: ast.AST, prefix: str = "", local: bool = False) -> Iterator[tuple[str, int, int]]:
    """Qualified name, first and last line of every function, class, and constant of a module or class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield prefix + child.name, first, child.end_lineno or first
            yield from _definitions(child, f"{prefix}{child.name}.", local or not isinstance(child, ast.ClassDef))
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            if isinstance(target, ast.Name) and not local:
                yield prefix + target.id, child.lineno, child.end_lineno or child.lineno
        else:
            yield from _definitions(child, prefix, local)
