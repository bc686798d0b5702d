"""Mutants of the sources: small changes of expressions and statements in functions, by mutmut's operators.

An equivalent mutant, one that no test could kill, is marked by hand with a reason in `equivalent.yaml`.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import libcst
import msgspec
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from specmatrix import HOME
from specmatrix.errors import ConfigError, shown

EQUIVALENT_FILE: Final = Path(__file__).with_name("equivalent.yaml")


class Mutant(NamedTuple):
    """One small change. path: from the root. within: the function's qualified name. number: among those of the file.
    before, after: the changed lines. text: of the whole file."""

    path: str
    line: int
    within: str
    number: int
    before: str
    after: str
    text: str

    @property
    def id(self) -> str:
        """`PATH:LINE#NUMBER`: its place, and its number among the mutants of the file."""
        return f"{self.path}:{self.line}#{self.number}"

    def apply(self, root: Path) -> list[Path]:
        """Write the mutated file into the tree at `root`."""
        file = root / self.path
        file.write_text(self.text, encoding="utf-8")
        return [file]


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant that behaves as the original does, and why; known by its file, function and changed lines."""

    path: str
    within: str
    before: str
    after: str
    reason: str

    def marks(self, mutant: Mutant) -> bool:
        """Whether the mark is for this mutant, ignoring indentation."""
        pairs = (self.before, mutant.before), (self.after, mutant.after)
        return (self.path, self.within) == (mutant.path, mutant.within) and all(_bare(a) == _bare(b) for a, b in pairs)


class Mutations:
    """The mutants of one source text, in the order of the text."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._text, self._named = path, text, functions_of(text)
        wrapper = MetadataWrapper(libcst.parse_module(text))
        self._module, positions = wrapper.module, wrapper.resolve(PositionProvider)
        self._changes: list[tuple[int, int, Any, Any]] = []  # first and last line, node, what replaces it
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

    def __getitem__(self, number: int) -> Mutant:
        line, _, node, mutated = self._changes[number]
        text = self._module.deep_replace(node, mutated).code
        old, new = self._text.splitlines(), text.splitlines()
        head = _common(old, new)
        tail = _common(old[head:][::-1], new[head:][::-1])
        before, after = ("\n".join(part[head : len(part) - tail]) for part in (old, new))
        return Mutant(self._path, line, self._named[line], number, before, after, text)

    def near(self, mark: Equivalent) -> Iterator[Mutant]:
        """Yield the mutants in the function of a mark that may change its lines."""
        lines = mark.before.splitlines()
        at = [n for n, line in enumerate(self._text.splitlines(), 1) if line.strip() == lines[0].strip()]
        for number, (first, last, _, _) in enumerate(self._changes):
            if self._named[first] == mark.within and any(first < n + len(lines) and n <= last for n in at):
                yield self[number]


def functions_of(text: str) -> dict[int, str]:
    """The qualified name of the innermost function whose body holds a line, by line of a source text. A function's own
    header and decorators belong to what surrounds it."""
    found: dict[int, str] = {}

    def enter(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    last = child.end_lineno or child.lineno
                    found.update(dict.fromkeys(range(child.body[0].lineno, last + 1), name))
            enter(child, name)

    enter(ast.parse(text), "")
    return found


@cache
def mutations(path: str, root: Path = HOME) -> Mutations:
    """The mutants of a file, which take a second for a large one."""
    return Mutations(path, (root / path).read_text(encoding="utf-8"))


def sample_of(paths: Sequence[str], size: int, seed: int, root: Path = HOME) -> tuple[list[Mutant], int]:
    """`size` mutants of the files and folders `paths`, drawn with a seed, or all; and how many there are. ConfigError
    if a path has none."""
    known = []
    for path in paths:
        place = root / path
        files = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
        own = [mutations(str(file.relative_to(root)), root) for file in files if file.is_file()]
        if not any(own):
            raise ConfigError(f"{shown(path)} has no function that can be mutated")
        known += [(each, number) for each in own for number in range(len(each))]
    return [own[number] for own, number in random.Random(seed).sample(known, min(size, len(known)))], len(known)


def named_mutant(name: str, root: Path = HOME) -> Mutant:
    """The mutant with this id. ConfigError if the current sources have none; changed sources renumber mutants."""
    path, number = name.partition(":")[0], name.rpartition("#")[2]
    if (root / path).is_file() and number.isdecimal() and int(number) < len(own := mutations(path, root)):
        found = own[int(number)]
        if found.id == name:
            return found
    raise ConfigError(f"there is no mutant {shown(name)}; --list names those of a sample")


def equivalents(file: Path = EQUIVALENT_FILE, root: Path = HOME) -> tuple[Equivalent, ...]:
    """The mutants that are marked as equivalent. ConfigError on a mark that matches no mutant of the current sources:
    it must be reviewed again."""
    marked = msgspec.yaml.decode(file.read_bytes(), type=tuple[Equivalent, ...])
    for mark in marked:
        if not any(map(mark.marks, mutations(mark.path, root).near(mark))):
            raise ConfigError(f"{file.name}: {mark.path} has no such mutant of {mark.within}; update its mark")
    return marked


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of equal lines at the beginning."""
    least = min(len(one), len(other))
    return next((place for place in range(least) if one[place] != other[place]), least)


def _bare(lines: str) -> list[str]:
    return [line.strip() for line in lines.splitlines()]
