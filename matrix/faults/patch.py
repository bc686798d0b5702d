"""Replacements of source text, each within a named definition, so that they survive moves and line shifts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from specmatrix.errors import ConfigError
from specmatrix.files import parsed


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
