"""Cell selectors: `algorithm=eagle3 and topk in (2, 4) and not memory=tight`, or a cell's id."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.files import parsed
from specmatrix.matrix.cells.axes import INDEX, NAMES, axis
from specmatrix.matrix.cells.cell import MEANINGS, Cell

Predicate: TypeAlias = Callable[[tuple[str, ...]], bool]
# Levels of negations, and of `and` within `or`.
DEEPEST: Final = 100
OPERATORS: Final = ("and", "or", "not", "in")
WORD: Final = re.compile(r"[\w.-]+")
BETWEEN: Final = re.compile(r"[\w\s(),]|!=|==?")
ASSIGNED: Final = re.compile(r"(?<![!=])=(?!=)")
HELP: Final = "write axis=value, axis!=value or axis in (a, b), joined with and, or, not and parentheses, or a cell id"


@dataclass(frozen=True, slots=True)
class Selector:
    """A predicate over cells.

    may: for a prefix of axis values, false only if it rules out every cell with that prefix. must: true only if it
    selects every such cell. ids: cells, each of which it selects by its id alone or as one of several alternatives.
    axes: the only ones that it reads, in their order.
    """

    picks: Predicate
    may: Predicate
    must: Predicate
    ids: tuple[Cell, ...] = ()
    axes: tuple[str, ...] = ()

    def __call__(self, cell: Cell) -> bool:
        """True if the cell is selected."""
        return self.picks(cell)


def parse_selector(text: str) -> Selector:
    """A predicate over cells. ConfigError on a syntax error, an unknown axis or an unknown value."""
    words: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[0] in OPERATORS:
            return found[0]
        words.append(found[0])
        return f"_{len(words) - 1}"

    # The syntax is Python's, once each word is a name, and `=` is `==`.
    source = WORD.sub(numbered, text)
    if wrong := BETWEEN.sub("", source):
        raise ConfigError(f"selector {shown(text)} has the invalid character {wrong[0]!r}; {HELP}")
    try:
        return _read(parsed(" ".join(ASSIGNED.sub("==", source).split())).body, words)
    except (RecursionError, MemoryError):
        raise ConfigError(f"selector {shown(text)} nests more than {DEEPEST} levels deep") from None
    except SyntaxError:
        raise ConfigError(f"selector {shown(text)} is incomplete, or has something out of place; {HELP}") from None


def _read(node: object, words: Sequence[str], depth: int = 0) -> Selector:
    """The selector of a part of the syntax tree, whose names are indices of `words`. SyntaxError on any other part."""
    if depth > DEEPEST:
        raise RecursionError
    match node:
        case [ast.Expr(whole)]:
            return _read(whole, words)
        case ast.BoolOp(operator, parts):
            inner = [_read(part, words, depth + 1) for part in parts]
            return _joined(any if isinstance(operator, ast.Or) else all, inner)
        case ast.UnaryOp(ast.Not(), part):
            return _negated(_read(part, words, depth + 1))
        case ast.Compare(ast.Name() as left, [operator], [right]):
            row = axis(_word(left, words))
            values = right.elts if isinstance(right, ast.Tuple) else [right]
            within = _within(row.name, frozenset(row.value(_word(value, words)).name for value in values))
            return _negated(within) if isinstance(operator, ast.NotEq | ast.NotIn) else within
    return _cell(_word(node, words))


def _word(node: object, words: Sequence[str]) -> str:
    if not isinstance(node, ast.Name):
        raise SyntaxError
    return words[int(node.id[1:])]


def _cell(word: str) -> Selector:
    """Select a single cell by its id. ConfigError if the word is no id."""
    if "." not in word and word not in MEANINGS:
        # It may be a misspelled axis; if it resembles nothing, name both forms.
        if nearest(word, NAMES):
            axis(word)
        if not nearest(word, MEANINGS):
            raise ConfigError(f"{shown(word)} is neither a cell id nor a selector; {HELP}")
    wanted = Cell.from_id(word)
    return Selector(
        lambda cell: cell == wanted, lambda known: wanted[: len(known)] == known, lambda known: False, (wanted,), NAMES
    )


def _within(name: str, values: frozenset[str]) -> Selector:
    index = INDEX[name]
    return Selector(
        lambda cell: cell[index] in values,
        lambda known: index >= len(known) or known[index] in values,
        lambda known: index < len(known) and known[index] in values,
        axes=(name,),
    )


def _joined(combine: Callable[[Iterable[bool]], bool], parts: Sequence[Selector]) -> Selector:
    def over(predicates: Sequence[Predicate]) -> Predicate:
        return lambda values: combine(predicate(values) for predicate in predicates)

    mays, musts = [part.may for part in parts], [part.must for part in parts]
    ids = tuple(cell for part in parts for cell in part.ids) if combine is any else ()
    named = {name for part in parts for name in part.axes}
    axes = tuple(name for name in NAMES if name in named)
    return Selector(over([part.picks for part in parts]), over(mays), over(musts), ids, axes)


def _negated(inner: Selector) -> Selector:
    return Selector(_flipped(inner.picks), _flipped(inner.must), _flipped(inner.may), axes=inner.axes)


def _flipped(inner: Predicate) -> Predicate:
    return lambda values: not inner(values)
