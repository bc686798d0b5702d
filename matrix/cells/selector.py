"""Cell selectors: `algorithm=eagle3 and topk in (2, 4) and not memory=tight`, or a cell's id."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.matrix.cells.axes import INDEX, NAMES, axis
from specmatrix.matrix.cells.cell import MEANINGS, Cell
from specmatrix.reports.selector import HELP, SelectorParser

Predicate: TypeAlias = Callable[[tuple[str, ...]], bool]


@dataclass(frozen=True, slots=True)
class Selector:
    """A predicate over cells.

    may: for a prefix of axis values, false only if it rules out every cell with that prefix. must: true only if it
    selects every such cell. ids: cells, each of which it selects by its id alone or as one of several alternatives.
    """

    picks: Predicate
    may: Predicate
    must: Predicate
    ids: tuple[Cell, ...] = ()

    def __call__(self, cell: Cell) -> bool:
        """True if the cell is selected."""
        return self.picks(cell)


def parse_selector(text: str) -> Selector:
    """A predicate over cells. ConfigError on a syntax error, an unknown axis or an unknown value."""
    return _Parser(text).parse()


class _Parser(SelectorParser[Selector]):
    """Selects cells of the matrix."""

    def is_axis(self, name: str) -> bool:
        return name in INDEX

    def axis(self, name: str) -> None:
        axis(name)

    def value(self, name: str, word: str) -> str:
        return axis(name).value(word).name

    def single(self, word: str) -> Selector:
        """A cell's id, or an error."""
        if "." not in word and word not in MEANINGS:
            if nearest(word, NAMES):
                axis(word)
            if not nearest(word, MEANINGS):
                raise ConfigError(f"{shown(word)} is neither a cell id nor a selector; {HELP}")
        wanted = Cell.from_id(word)
        return Selector(lambda cell: cell == wanted, lambda known: wanted[: len(known)] == known, _never, (wanted,))

    def within(self, name: str, values: frozenset[str]) -> Selector:
        index = INDEX[name]
        return Selector(
            lambda cell: cell[index] in values,
            lambda known: index >= len(known) or known[index] in values,
            lambda known: index < len(known) and known[index] in values,
        )

    def joined(self, combine: Callable[[Iterable[bool]], bool], parts: Sequence[Selector]) -> Selector:
        def over(predicates: Sequence[Predicate]) -> Predicate:
            return lambda values: combine(predicate(values) for predicate in predicates)

        mays, musts = [part.may for part in parts], [part.must for part in parts]
        ids = tuple(cell for part in parts for cell in part.ids) if combine is any else ()
        return Selector(over([part.picks for part in parts]), over(mays), over(musts), ids)

    def negated(self, inner: Selector) -> Selector:
        return Selector(_flipped(inner.picks), _flipped(inner.must), _flipped(inner.may))


def _flipped(inner: Predicate) -> Predicate:
    return lambda values: not inner(values)


def _never(known: tuple[str, ...]) -> bool:
    return False
