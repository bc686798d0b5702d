"""`specmatrix mutants`: small random changes of the sources, by mutmut's operators, and what kills them.

Of the engine and its kernels, cells judge a mutant first and then unit tests; of what judges, unit tests do first, and
then the kill matrix.
Only expressions and statements within functions are mutated. An equivalent mutant, one that no test could kill, is
marked by hand with a reason in `equivalent.yaml`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from difflib import unified_diff
from functools import lru_cache
from operator import ne
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec

from specmatrix import HOME
from specmatrix.errors import ConfigError, shown
from specmatrix.extras import require
from specmatrix.files import read_text
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.judges import KillChanges, unit_tests_of
from specmatrix.matrix.faults.loader import catalogue
from specmatrix.matrix.faults.plant import CellVerdict, environment, planted, trial
from specmatrix.matrix.faults.processes import HUNG, Processes
from specmatrix.matrix.run.functions import FOLDERS, ExecutedFunctions, functions_of
from specmatrix.reports.schema import RED_STATES

EQUIVALENT_FILE: Final = Path(__file__).with_name("equivalent.yaml")
# Ring 0 and the drafters and verifiers.
PATHS: Final = ("engine/core", "engine/spec")
# What cells execute as the engine under test; `matrix.run.functions` records these folders.
JUDGED: Final = tuple(f"{folder}/" for folder in FOLDERS)
# A mutant may loop forever; several times what the tests take.
TEST_SECONDS: Final = 900.0
# What pytest exits with where nightly tests alone are chosen.
NO_TESTS: Final = 5


class Mutant(NamedTuple):
    """One small change. path: from the root. within: the function's qualified name. text: of the whole file."""

    path: str
    line: int
    within: str
    number: int
    before: str
    after: str
    text: str

    @property
    def id(self) -> str:
        """Its place, and its number among the mutants of the file."""
        return f"{self.path}:{self.line}#{self.number}"

    @property
    def diff(self) -> str:
        """Its lines, without headers."""
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if line[:3] not in ("---", "+++", "@@ "))

    def apply(self, root: Path) -> list[Path]:
        """Write the mutated file into the tree at `root`."""
        file = root / self.path
        file.write_text(self.text, encoding="utf-8")
        return [file]


class MutantOutcome(msgspec.Struct, frozen=True):
    """What killed a mutant. by: "smoke" or "pr" for a red cell of that stage, "tests", "faults" for a fault that gates
    see differently, or "" for a survivor. cell: the red one. how: the gates that failed, "crash", "hang", the test, or
    the fault. cells: number of cells that execute it."""

    id: str
    within: str
    diff: str
    by: str
    cell: str
    how: str
    cells: int
    seconds: float


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant that behaves as the original does, and why; known by its file, function and changed lines."""

    path: str
    within: str
    before: str
    after: str
    reason: str


class Mutations:
    """The mutants of one source text, in the order of the text. ConfigError without mutmut."""

    def __init__(self, path: str, text: str) -> None:
        require("mutmut")
        import libcst
        from libcst.metadata import MetadataWrapper, PositionProvider
        from mutmut.mutation.mutators import mutation_operators

        self._path, self._text, self._named = path, text, functions_of(text)
        wrapper = MetadataWrapper(libcst.parse_module(text))
        self._module, positions = wrapper.module, wrapper.resolve(PositionProvider)
        self._changes: list[tuple[int, int, Any, Any]] = []
        self._made: dict[int, Mutant] = {}
        changes, named = self._changes, self._named

        class Visitor(libcst.CSTVisitor):
            def on_visit(self, node: Any) -> bool:  # noqa: ANN401  # any node, as libcst declares it
                if isinstance(node, libcst.Annotation | libcst.Decorator | libcst.Parameters):
                    return False
                line, last = (positions[node].start.line, positions[node].end.line) if node in positions else (0, 0)
                if line in named:
                    for kind, operator in mutation_operators:
                        if isinstance(node, kind):
                            changes.extend((line, last, node, mutated) for mutated in operator(node))
                return True

        self._module.visit(Visitor())

    def __len__(self) -> int:
        return len(self._changes)

    def marked(self, mark: Equivalent) -> bool:
        """Whether a mark matches one of them."""
        head, *rest = map(str.strip, mark.before.splitlines())
        places = [number for number, line in enumerate(self._text.splitlines(), start=1) if line.strip() == head]
        return any(
            is_equivalent(self[number], [mark])
            for number, (line, last, _, _) in enumerate(self._changes)
            if self._named[line] == mark.within and any(line <= place + len(rest) and place <= last for place in places)
        )

    def __getitem__(self, number: int) -> Mutant:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Mutant:
        line, _, node, mutated = self._changes[number]
        text = self._module.deep_replace(node, mutated).code
        old, new = self._text.splitlines(), text.splitlines()
        head = _common(old, new)
        tail = _common(old[head:][::-1], new[head:][::-1])
        before, after = ("\n".join(part[head : len(part) - tail]) for part in (old, new))
        return Mutant(self._path, line, self._named[line], number, before, after, text)


@lru_cache(maxsize=256)
def mutations(path: str, text: str) -> Mutations:
    """`Mutations`, which take a second for a large file."""
    return Mutations(path, text)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of equal lines at the beginning."""
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if ne(*pair)), min(len(one), len(other))
    )


def sample_of(paths: Sequence[str], size: int, seed: int, root: Path = HOME) -> tuple[list[Mutant], int]:
    """`size` mutants of the files below `paths`, drawn with a seed, or all; and how many there are.

    ConfigError if a path is none of the checkout's, or if nothing there can be mutated.
    """
    files: dict[str, Mutations] = {}
    for path in paths:
        place = root / path
        found = [place] if place.suffix == ".py" and place.is_file() else sorted(place.rglob("*.py"))
        if not found or not place.resolve().is_relative_to(root.resolve()):
            raise ConfigError(f"--paths: {shown(path)} is no Python file, or folder of some, below {root}")
        for file in found:
            name = str(file.relative_to(root))
            files[name] = mutations(name, file.read_text(encoding="utf-8"))
    known = [(own, number) for own in files.values() for number in range(len(own))]
    if not known:
        raise ConfigError(f"--paths: {', '.join(map(shown, paths))}: no function there can be mutated")
    return [own[number] for own, number in random.Random(seed).sample(known, min(size, len(known)))], len(known)


def named_mutants(ids: Sequence[str], root: Path = HOME) -> list[Mutant]:
    """The mutants of these ids. ConfigError if one names none of today's sources, which number them anew."""
    found = []
    for name in ids:
        path, _, place = name.rpartition(":")
        number = place.rpartition("#")[2]
        file = root / path
        if file.suffix == ".py" and file.is_file() and number.isdecimal():
            own = mutations(path, file.read_text(encoding="utf-8"))
            if int(number) < len(own) and own[int(number)].id == name:
                found.append(own[int(number)])
                continue
        raise ConfigError(f"there is no mutant {shown(name)}; `specmatrix mutants --list` names those of a sample")
    return found


def equivalents(path: Path = EQUIVALENT_FILE, root: Path = HOME) -> tuple[Equivalent, ...]:
    """The mutants that are marked as equivalent. ConfigError on an invalid file, and on a mark that matches no mutant
    of today's sources: it must be looked at again."""
    try:
        marked = msgspec.yaml.decode(read_text(path), type=tuple[Equivalent, ...])
        for mark in marked:
            if not mutations(mark.path, read_text(root / mark.path)).marked(mark):
                raise ConfigError(
                    f"{path.name}: {mark.path} has no such mutant of {shown(mark.within)}; update its mark"
                )
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot read {shown(str(error.filename))}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is invalid: {error}") from None
    return marked


def is_equivalent(mutant: Mutant, known: Sequence[Equivalent]) -> bool:
    """Whether a mutant is marked."""
    own = mutant.path, mutant.within, _bare(mutant.before), _bare(mutant.after)
    return own in {(one.path, one.within, _bare(one.before), _bare(one.after)) for one in known}


def _bare(lines: str) -> str:
    return "\n".join(line.strip() for line in lines.splitlines())


def run_mutants(
    mutants: Sequence[Mutant],
    smoke: Sequence[Cell],
    pr: Sequence[Cell],
    executed: ExecutedFunctions,
    seed: int,
    workers: int,
    tests: bool = True,
) -> Iterator[MutantOutcome]:
    """The outcome of each mutant as it ends, `workers` at a time.

    smoke, pr: the cells of the stages, in the order in which they run; those that are known not to execute the mutated
    function are left out. tests: run the unit tests too; ConfigError at the end if they fail without any mutant.
    """
    processes = Processes()
    changes = KillChanges(catalogue(), pr, seed, processes)
    with ThreadPoolExecutor(workers) as pool:
        checked = pool.submit(check_tests, [one.path for one in mutants] if tests else [], processes)
        jobs = [
            pool.submit(_outcome, one, smoke, pr, executed, seed, tests, processes)
            if one.path.startswith(JUDGED)
            else pool.submit(_judge_outcome, one, changes, tests, processes)
            for one in mutants
        ]
        try:
            for done in as_completed(jobs):
                yield done.result()
            checked.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()


def red_without_mutants(outcomes: Sequence[MutantOutcome], seed: int) -> tuple[str, ...]:
    """The killers that are red without any mutant too, so that their kills mean nothing."""
    cells = [Cell.from_id(name) for name in sorted({one.cell for one in outcomes if one.cell})]
    if not cells:
        return ()
    result = trial(None, cells, seed)
    red = [f"{verdict.cell}: {verdict.error or _red(verdict)}" for verdict in result.verdicts if is_red(verdict)]
    return (*red, *([result.died] if result.died else []))


def check_tests(paths: Iterable[str], processes: Processes) -> None:
    """ConfigError if the unit tests of these files fail without any mutant."""
    everywhere = sorted({place for path in paths for places in unit_tests_of(path) for place in places})
    if failed := failed_test(None, everywhere, processes):
        raise ConfigError(f"a unit test fails without any mutant, so that it would kill them all: {failed}")


def is_red(verdict: CellVerdict) -> bool:
    """Whether a cell crashed or a gate is red."""
    return bool(verdict.error or _red(verdict))


def _red(verdict: CellVerdict) -> str:
    return " ".join(name for name, (state, _) in verdict.gates.items() if state in RED_STATES)


def failed_test(mutant: Mutant | None, places: Sequence[str], processes: Processes) -> str:
    """The first unit test of files and folders that fails with a mutant, or the end of what pytest says; "" if all
    pass."""
    with planted(mutant, tests=True) as tree:
        words = [sys.executable, "-m", "pytest", *places, "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        died = processes.run([*words, "-p", "no:xdist"], tree, environment(tree), TEST_SECONDS)
    if died is None or died.startswith(f"exit status {NO_TESTS}:"):
        return ""
    named = [line.split()[1] for line in died.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return named[0] if named else died


def _outcome(
    mutant: Mutant,
    smoke: Sequence[Cell],
    pr: Sequence[Cell],
    executed: ExecutedFunctions,
    seed: int,
    tests: bool,
    processes: Processes,
) -> MutantOutcome:
    known, first = set(executed.cells), {cell.id for cell in smoke}
    reached = executed.executing((mutant.path, mutant.within))
    # What ranks execute is not recorded.
    maybe = {cell.id for cell in (*smoke, *pr) if cell.id not in known or cell.ranks > 1}
    cells = [cell for cell in dict.fromkeys((*smoke, *pr)) if cell.id in reached | maybe]

    def ended(by: str, cell: str, how: str, seconds: float) -> MutantOutcome:
        return MutantOutcome(mutant.id, mutant.within, mutant.diff, by, cell, how, len(cells), round(seconds, 1))

    spent = 0.0
    if cells:
        result = trial(mutant, cells, seed, processes=processes, first=True)
        spent = sum(verdict.seconds for verdict in result.verdicts)
        last = result.verdicts[-1] if result.verdicts else None
        if last is not None and is_red(last):
            return ended("smoke" if last.cell in first else "pr", last.cell, _red(last) or "crash", spent)
        if result.died:
            at = cells[min(len(result.verdicts), len(cells) - 1)]
            how = "hang" if result.died.startswith(HUNG) else "crash"
            return ended("smoke" if at.id in first else "pr", at.id, how, spent)
    for places in unit_tests_of(mutant.path) if tests else ():
        if failed := failed_test(mutant, places, processes):
            return ended("tests", "", failed, spent)
    return ended("", "", "", spent)


def _judge_outcome(mutant: Mutant, changes: KillChanges, tests: bool, processes: Processes) -> MutantOutcome:
    """The outcome of a mutant of what judges."""
    began = monotonic()

    def ended(by: str, how: str) -> MutantOutcome:
        return MutantOutcome(mutant.id, mutant.within, mutant.diff, by, "", how, 0, round(monotonic() - began, 1))

    for places in unit_tests_of(mutant.path) if tests else ():
        if failed := failed_test(mutant, places, processes):
            return ended("tests", failed)
    change = changes.first(mutant.path, mutant)
    return ended("faults" if change else "", change)
