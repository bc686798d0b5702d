"""Mutants of what judges, such as gates and oracles: the unit tests nearest to a module, and the kill matrix, in which
a changed gate sees a fault of the catalogue differently."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.fault import Fault
from specmatrix.matrix.faults.plant import Plantable, Trial, trial
from specmatrix.matrix.faults.processes import Processes
from specmatrix.reports.schema import REFERENCE

TESTS: Final = "tests/registered/cpu/unit"
# The folders whose modules belong to the gates that import them, also by another such module.
JUDGING: Final = ("matrix/gates", "matrix/oracles")
# Faults that one mutant meets at most, of all parts of the catalogue alike.
MOST: Final = 24
# Cell, the states of its gates, and whether it crashed.
States: TypeAlias = list[tuple[str, dict[str, str], bool]]


def unit_tests_of(path: str, root: Path = HOME) -> tuple[tuple[str, ...], ...]:
    """Where the unit tests of a source file are, nearest first: the files that import it, or a gate that does, the
    nearest folder at its place, and all of its package's."""
    whole, *further = Path(path).parts[:-1]
    nearest = next(
        place
        for depth in range(len(further), -1, -1)
        if (root / (place := "/".join((TESTS, whole, *further[:depth])))).is_dir() or not depth
    )
    near, tests = {path, *_dependents(path, root)}, _texts(TESTS, root)
    importing = tuple(name for name, text in tests.items() if any(imports(text, one) for one in near))
    return tuple(dict.fromkeys(filter(None, (importing, (nearest,), (f"{TESTS}/{whole}",)))))


def gates_of(path: str, root: Path = HOME) -> frozenset[str]:
    """The names of the gates whose module this is, or that import it."""
    texts = _judging(root)
    near = _dependents(path, root)
    return frozenset(re.findall(r'^    name: str = "(\w+)"$', "\n".join(texts[name] for name in near), re.MULTILINE))


def _dependents(path: str, root: Path) -> set[str]:
    """A module of the judging folders with those of them that import it, directly or not; else none."""
    texts = _judging(root)
    near = {path} & set(texts)
    while found := {name for name, text in texts.items() if any(imports(text, one) for one in near)} - near:
        near |= found
    return near


def _judging(root: Path) -> dict[str, str]:
    return {name: text for folder in JUDGING for name, text in _texts(folder, root).items()}


def imports(text: str, path: str) -> bool:
    """Whether a source text imports the module at a path of the checkout."""
    package, _, name = f"specmatrix.{path.removesuffix('.py').replace('/', '.')}".rpartition(".")
    whole, one = re.escape(f"{package}.{name}"), re.escape(package)
    return bool(re.search(rf"(from|import) {whole}\b|from {one} import ([^(\n]*|\([^)]*)\b{name}\b", text))


@cache
def _texts(folder: str, root: Path) -> Mapping[str, str]:
    files = sorted((root / folder).rglob("*.py"))
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files}


@dataclass(frozen=True, slots=True)
class _Both:
    mutant: Plantable
    fault: Fault

    def apply(self, root: Path) -> list[Path]:
        """Make both changes."""
        return [*self.mutant.apply(root), *self.fault.patch.apply(root)]


@dataclass(slots=True)
class KillChanges:
    """Finds faults that gates see differently once a mutant has changed them.

    faults: of the catalogue. locked: the cells that their selectors choose from.
    """

    faults: Iterable[Fault]
    locked: Sequence[Cell]
    seed: int
    processes: Processes
    _plain: dict[str, States] = field(default_factory=dict)
    _locks: dict[str, Lock] = field(default_factory=dict)

    def first(self, path: str, mutant: Plantable) -> str:
        """The first fault whose cells' gates have other states with the mutant of this file, and the change; "" if
        there is none among MOST faults that its gates must detect."""
        own = gates_of(path)
        faults = [
            one
            for one in self.faults
            if not own.isdisjoint(one.expected) and (one.subject, one.operations, one.tier) == (REFERENCE, (), "cpu")
        ]
        for fault in faults[:: -(-len(faults) // MOST) or 1]:
            with self._locks.setdefault(fault.id, Lock()):
                if fault.id not in self._plain:
                    self._plain[fault.id] = self._states(fault.patch, fault)
            if change := _change(self._plain[fault.id], self._states(_Both(mutant, fault), fault)):
                return f"{fault.id}: {change}"
        return ""

    def _states(self, change: Plantable, fault: Fault) -> States:
        found: Trial = trial(change, fault.chosen(self.locked), self.seed, processes=self.processes)
        return [
            (one.cell, {name: state for name, (state, _) in one.gates.items()}, bool(one.error))
            for one in found.verdicts
        ]


def _change(old: States, new: States) -> str:
    for (cell, before, crashed), (_, after, crashes) in zip(old, new, strict=False):
        for name in dict.fromkeys((*before, *after)):
            if before.get(name) != after.get(name):
                return f"{name} of {cell} is {after.get(name, 'gone')}, not {before.get(name, 'gone')}"
        if crashed != crashes:
            return f"{cell} {'crashes' if crashes else 'does not crash'}"
    return "" if len(old) == len(new) else f"{len(new)} of {len(old)} cells end"
