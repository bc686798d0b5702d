"""A source-level fault: its text, replacement and origin, the cells that exercise it, the gates that must detect it.

Reads the faults: `catalogue/*.yaml`, by subject of the defect, and `delays.yaml`.

Replacements of source text, each within a named definition, so that they survive moves and line shifts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.errors import ConfigError, shown, text_of
from specmatrix.files import parsed
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.reports.schema import REFERENCE
from specmatrix.reports.yaml_text import parse_yaml
from specmatrix.user_file import DEFINED


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replacement in a definition: a function, a class, or a constant of a module or class.

    within: the definition's qualified name without its module (`Ledger.settle`), so that moving a module changes no
    patch. old: text that occurs exactly once in all definitions of that name. new: its replacement.
    """

    within: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Patch:
    """A set of source edits. name: of the owner, for error messages."""

    name: str
    edits: tuple[Edit, ...]

    def changes(self, sources: dict[Path, str]) -> dict[Path, str]:
        """The changed source files with their new texts. ConfigError if it does not apply."""
        changed: dict[Path, str] = {}
        for edit in self.edits:
            found = [(path, at) for path, text in (sources | changed).items() for at in _places(text, edit)]
            if len(found) != 1:
                first = edit.old.strip().splitlines()[0]
                raise ConfigError(
                    f"{self.name} does not apply: {first!r} occurs {len(found)} times in {edit.within}, not once; "
                    "update it to match the code"
                )
            [(path, at)] = found
            text = changed.get(path, sources[path])
            changed[path] = text[:at] + edit.new + text[at + len(edit.old) :]
        return changed

    def apply(self, root: Path) -> list[Path]:
        """Make the replacements in the tree at `root`; returns the changed files. ConfigError if it does not apply."""
        changed = self.changes(sources(root))
        for path, text in changed.items():
            path.write_text(text, encoding="utf-8")
        return list(changed)


def sources(root: Path) -> dict[Path, str]:
    """The texts of the Python files under `root`, by path."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}


def _places(text: str, edit: Edit) -> set[int]:
    """Offsets in a source text where `edit` applies."""
    if edit.old not in text or edit.within.rpartition(".")[2] not in text:
        return set()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    places = set()
    for name, first, last in _definitions_of(text):
        if name == edit.within:
            at = text.find(edit.old, starts[first - 1], starts[last])
            while at >= 0:
                places.add(at)
                at = text.find(edit.old, at + 1, starts[last])
    return places


@lru_cache(1024)
def _definitions_of(text: str) -> tuple[tuple[str, int, int], ...]:
    return tuple(_definitions(parsed(text)))


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


FOLDER: Final = Path(__file__).parent
FIELDS: Final = f"a fault has {', '.join(Fault.__struct_fields__)}; an edit has {', '.join(Edit.__struct_fields__)}"


# Faults added by plug-ins.
_OWN: Final[list[Fault]] = []


def register_fault(fault: Fault) -> None:
    """Add a fault after the catalogue's. ConfigError if its id is taken or it is no Fault."""
    if not isinstance(fault, Fault):
        raise ConfigError(f"a fault must be a Fault, got {shown(fault)}")
    if fault.id in (known.id for known in all_faults()):
        raise ConfigError(f"fault {shown(fault.id)} exists already; choose another id")
    _OWN.append(fault)
    DEFINED.append(f"fault {fault.id}")


def all_faults() -> tuple[Fault, ...]:
    """The catalogue's faults and those of plug-ins."""
    return (*catalogue(), *_OWN)


@cache
def catalogue() -> tuple[Fault, ...]:
    """The faults that a gate must detect. ConfigError if their files are missing, as in an incomplete installation."""
    if not (files := sorted((FOLDER / "catalogue").glob("*.yaml"))):
        raise ConfigError(f"{FOLDER / 'catalogue'} holds no fault files (*.yaml); reinstall specmatrix")
    return tuple(fault for path in files for fault in read_faults(path))


@cache
def delays() -> tuple[Fault, ...]:
    """The faults that a comparison of two timed runs must detect; they are not part of the catalogue."""
    return read_faults(FOLDER / "delays.yaml")


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Read the faults of a file. One-sentence ConfigError if it is invalid."""
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"), own=True)
    except ValueError as error:
        raise ConfigError(f"{path.name} is not YAML: {text_of(error)}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path.name} must be a list of faults, got {shown(entries)}")
    return tuple(_fault(entry, f"{path.name}: fault {number}") for number, entry in enumerate(entries, 1))


def _fault(entry: object, where: str) -> Fault:
    try:
        return msgspec.convert(entry, Fault)
    except msgspec.ValidationError as error:
        name = f" ({text_of(entry['id'])})" if isinstance(entry, dict) and "id" in entry else ""
        problem, _, place = str(error).partition(" - at ")
        raise ConfigError(f"{where}{name}: {problem}{_at(entry, place)}; {FIELDS}") from None


def _at(entry: Any, place: str) -> str:  # noqa: ANN401  # whatever YAML holds
    """The value that msgspec's message is about, by its path such as `$.also[0].old`."""
    keys = re.findall(r"\w+", place)
    for key in keys:
        entry = entry[int(key)] if isinstance(entry, list) else entry[key]
    return f" {shown(entry)} as {place.strip('`$.')}" if keys else ""
