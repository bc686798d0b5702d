"""Finds what kills a mutant. Mutants of the engine and its kernels: cells, then unit tests. Mutants of judging code:
unit tests, then the kill matrix, where a changed gate judges a fault of the catalogue differently."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import in_order, of_gpus
from specmatrix.matrix.faults.fault import Fault, catalogue
from specmatrix.matrix.faults.plant import HUNG, CellVerdict, Plantable, Processes, environment, planted, trial
from specmatrix.reports.schema import RED_STATES, REFERENCE
from tools.mutants.mutations import Mutant

TESTS: Final = "tests/registered/cpu/unit"
# Sources that cells execute as the engine under test.
ENGINE: Final = ("engine/", "kernels/")
# Folders whose modules belong to the gates that import them, directly or through another such module.
JUDGES: Final = ("matrix/gates", "matrix/oracles")
# Paths that tests do not read; the rest of a checkout, such as its documentation, is linked beside a copy with tests.
NOT_BESIDE: Final = (".git", ".lint", ".venv", "out")
# A mutant may loop forever; several times what the tests take.
TEST_SECONDS: Final = 900.0
# Exit status of pytest if only nightly tests are selected.
NO_TESTS: Final = "exit status 5:"
# Maximum number of faults tried per mutant, spread over the catalogue.
MAX_FAULTS: Final = 24


class Outcome(msgspec.Struct, frozen=True):
    """What killed a mutant. by: "cells", "tests", "faults" or "" for a survivor. how: the gates that failed, "crash",
    "hang", the test, or the change in a fault's verdict. cell: the red one."""

    id: str
    by: str = ""
    how: str = ""
    cell: str = ""


@dataclass(slots=True)
class Judge:
    """Finds what kills mutants, with all processes run by `processes`. cells: run against mutants of the engine."""

    seed: int
    cells: Sequence[Cell] = field(default_factory=lambda: of_gpus(in_order(stage_cells("pr")), 0))
    processes: Processes = field(default_factory=Processes)
    _plain: dict[str, list[CellVerdict]] = field(default_factory=dict)
    _locks: dict[str, Lock] = field(default_factory=dict)

    def outcomes(self, mutants: Sequence[Mutant], workers: int) -> Iterator[Outcome]:
        """The outcome of each mutant as it ends, `workers` at a time. ConfigError at the end if a check that killed
        some is red without a mutant too."""
        everywhere = {place for one in mutants for places in unit_tests_of(one.path) for place in places}
        with ThreadPoolExecutor(workers) as pool:
            plain = pool.submit(self.failed_test, None, sorted(everywhere)) if mutants else None
            jobs = [pool.submit(self.outcome, one) for one in mutants]
            found = []
            try:
                for done in as_completed(jobs):
                    found.append(done.result())
                    yield found[-1]
                if plain is not None and plain.result():
                    raise ConfigError(f"a unit test fails without any mutant: {plain.result()}")
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.processes.stop()
        if killers := sorted({one.cell for one in found if one.cell}):
            verdicts = trial(None, [Cell.from_id(name) for name in killers], self.seed).verdicts
            if invalid := [one.cell for one in verdicts if red_gates(one)]:
                raise ConfigError(f"red without any mutant: {', '.join(invalid)}")

    def outcome(self, mutant: Mutant) -> Outcome:
        """What kills a mutant first."""
        engine = mutant.path.startswith(ENGINE)
        if engine and (killed := self.killed_by_cell(mutant)):
            return killed
        for places in unit_tests_of(mutant.path):
            if failed := self.failed_test(mutant, places):
                return Outcome(mutant.id, "tests", failed)
        changed = "" if engine else self.changed_fault(mutant)
        return Outcome(mutant.id, "faults" if changed else "", changed)

    def killed_by_cell(self, mutant: Mutant) -> Outcome | None:
        """The outcome if a cell is red."""
        result = trial(mutant, self.cells, self.seed, processes=self.processes, first=True)
        if result.verdicts and (red := red_gates(result.verdicts[-1])):
            return Outcome(mutant.id, "cells", red, result.verdicts[-1].cell)
        if result.died:
            at = self.cells[min(len(result.verdicts), len(self.cells) - 1)]
            return Outcome(mutant.id, "cells", "hang" if result.died.startswith(HUNG) else "crash", at.id)
        return None

    def failed_test(self, mutant: Mutant | None, places: Sequence[str]) -> str:
        """The first unit test of files and folders that fails with a mutant, or the end of what pytest says; "" if all
        pass."""
        with planted(mutant) as tree:
            add_tests(tree)
            words = [sys.executable, "-m", "pytest", *places, "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
            died = self.processes.run([*words, "-p", "no:xdist"], tree, environment(tree), TEST_SECONDS)
        if died is None or died.startswith(NO_TESTS):
            return ""
        named = [line.split()[1] for line in died.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return named[0] if named else died

    def changed_fault(self, mutant: Mutant) -> str:
        """The first fault whose cells' gates have other states with the mutant, and the change; "" if there is none
        among `MAX_FAULTS` that its gates must detect."""
        own = gates_of(mutant.path)
        faults = [
            one
            for one in catalogue()
            if own & {*one.expected} and (one.subject, one.operations, one.tier) == (REFERENCE, (), "cpu")
        ]
        for fault in faults[:: -(-len(faults) // MAX_FAULTS) or 1]:
            with self._locks.setdefault(fault.id, Lock()):
                if fault.id not in self._plain:
                    self._plain[fault.id] = self._verdicts(fault.patch, fault)
            if change := difference(self._plain[fault.id], self._verdicts(_Both(mutant, fault.patch), fault)):
                return f"{fault.id}: {change}"
        return ""

    def _verdicts(self, change: Plantable, fault: Fault) -> list[CellVerdict]:
        return [*trial(change, fault.chosen(self.cells), self.seed, processes=self.processes).verdicts]


@dataclass(frozen=True, slots=True)
class _Both:
    mutant: Plantable
    fault: Plantable

    def apply(self, root: Path) -> list[Path]:
        """Make both changes."""
        return [*self.mutant.apply(root), *self.fault.apply(root)]


def add_tests(tree: Path) -> None:
    """Add the tests to a copy of the packages, and links to the rest of the checkout that they read."""
    shutil.copytree(HOME / "tests", tree / "tests")
    shutil.copy(HOME / "pyproject.toml", tree)
    for path in HOME.iterdir():
        if path.name not in NOT_BESIDE and not (tree / path.name).exists():
            (tree / path.name).symlink_to(path)


def red_gates(verdict: CellVerdict) -> str:
    """The red gates of a cell, "crash" if it crashed, "" if it is green."""
    return " ".join(name for name, (state, _) in verdict.gates.items() if state in RED_STATES) or (
        "crash" if verdict.error else ""
    )


def difference(old: Sequence[CellVerdict], new: Sequence[CellVerdict]) -> str:
    """The difference between two lists of gate states, "" if they are equal."""
    for before, after in zip(old, new, strict=False):
        for gate in dict.fromkeys((*before.gates, *after.gates)):
            states = [each.gates.get(gate, ("gone",))[0] for each in (after, before)]
            if states[0] != states[1]:
                return f"{gate} of {before.cell} is {states[0]}, not {states[1]}"
        if bool(before.error) != bool(after.error):
            return f"{before.cell} {'crashes' if after.error else 'does not crash'}"
    return "" if len(old) == len(new) else f"{len(new)} of {len(old)} cells end"


@cache
def unit_tests_of(path: str) -> tuple[tuple[str, ...], ...]:
    """Locations of the unit tests of a source file, nearest first: the files that import it, or a gate that does, the
    nearest folder at its place, and all of its package's."""
    importing = tuple(name for name in _sources(TESTS) if any(_imports(name, one) for one in {path, *dependents(path)}))
    package, *further = Path(path).parts[:-1]
    folders = ["/".join((TESTS, package, *further[:depth])) for depth in range(len(further), -1, -1)]
    nearest = next((folder for folder in folders if (HOME / folder).is_dir()), folders[-1])
    return tuple(dict.fromkeys(filter(None, (importing, (nearest,), (folders[-1],)))))


def dependents(path: str) -> set[str]:
    """A module of the judging folders with those of them that import it, directly or not; else none."""
    judges = [name for folder in JUDGES for name in _sources(folder)]
    near = {path} & {*judges}
    while found := {name for name in judges if any(_imports(name, one) for one in near)} - near:
        near |= found
    return near


def gates_of(path: str) -> set[str]:
    """The names of the gates whose module this is, or that import it."""
    texts = "\n".join((HOME / name).read_text(encoding="utf-8") for name in dependents(path))
    return {*re.findall(r'^    name: str = "(\w+)"$', texts, re.MULTILINE)}


@cache
def _sources(folder: str) -> list[str]:
    return sorted(str(file.relative_to(HOME)) for file in (HOME / folder).rglob("*.py"))


def _imports(path: str, module: str) -> bool:
    name = module.removesuffix(".py").replace("/", ".")
    return any(one == name or one.startswith(f"{name}.") for one in _names(path))


@cache
def _names(path: str) -> set[str]:
    """Every module that a file may import, by full names without `specmatrix.`."""
    found = set()
    for node in ast.walk(ast.parse((HOME / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            head = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            found |= {f"{head}{alias.name}".removeprefix("specmatrix.") for alias in node.names}
    return found
