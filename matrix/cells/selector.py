"""Cell selectors: `algorithm=eagle3 and topk in (2, 4) and not memory=tight`, or a cell's id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.matrix.cells.axes import INDEX, NAMES, axis
from specmatrix.matrix.cells.cell import MEANINGS, Cell

Predicate: TypeAlias = Callable[[tuple[str, ...]], bool]
LEXEME: Final = re.compile(r"\s*(?:(!=|==?|[(),])|([\w.-]+))")
# Levels of parentheses and negations.
DEEPEST: Final = 100
HELP: Final = "write axis=value, axis!=value or axis in (a, b), joined with and, or, not and parentheses, or a cell id"


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


class _Parser:
    """Recursive-descent parser over the tokens of one selector; `at` is the index of the next token, `depth` the number
    of parentheses and negations around it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lexemes = self._split()
        self.at = self.depth = 0

    def parse(self) -> Selector:
        """The whole selector. ConfigError on a syntax error."""
        selector = self._either()
        if self._peek():
            raise self._wrong("the end")
        return selector

    def _split(self) -> list[str]:
        lexemes, position, text = [], 0, self.text.rstrip()
        while position < len(text):
            match = LEXEME.match(text, position)
            if match is None:
                raise ConfigError(
                    f"selector {shown(self.text)} has the invalid character {text[position:].strip()[0]!r}; {HELP}"
                )
            lexemes.append(match[1] or match[2])
            position = match.end()
        return lexemes

    def _peek(self) -> str:
        return self.lexemes[self.at] if self.at < len(self.lexemes) else ""

    def _take(self, *wanted: str) -> bool:
        """Consume the next token if it is one of these."""
        found = self._peek() in wanted
        self.at += found
        return found

    def _wrong(self, wanted: str) -> ConfigError:
        got = shown(self._peek()) if self._peek() else "the end"
        return ConfigError(f"selector {shown(self.text)}: expected {wanted}, got {got}; {HELP}")

    def _either(self) -> Selector:
        selectors = [self._both()]
        while self._take("or"):
            selectors.append(self._both())
        return selectors[0] if len(selectors) == 1 else self._joined(any, selectors)

    def _both(self) -> Selector:
        selectors = [self._single()]
        while self._take("and"):
            selectors.append(self._single())
        return selectors[0] if len(selectors) == 1 else self._joined(all, selectors)

    def _single(self) -> Selector:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError(f"selector {shown(self.text)} nests more than {DEEPEST} levels deep")
        selector = self._operand()
        self.depth -= 1
        return selector

    def _operand(self) -> Selector:
        if self._take("not"):
            return self._negated(self._single())
        if self._take("("):
            selector = self._either()
            if not self._take(")"):
                raise self._wrong("')'")
            return selector
        return self._comparison()

    def _comparison(self) -> Selector:
        name = self._word("an axis")
        if self._peek() not in ("=", "==", "!=", "in", "not") and name not in INDEX:
            return self._cell(name)
        axis(name)
        if self._take("=", "=="):
            return self._within(name, frozenset({self._value(name)}))
        if self._take("!="):
            return self._negated(self._within(name, frozenset({self._value(name)})))
        if self._take("in"):
            return self._within(name, self._values(name))
        if self._take("not") and self._take("in"):
            return self._negated(self._within(name, self._values(name)))
        raise self._wrong("=, != or in")

    def _values(self, name: str) -> frozenset[str]:
        if not self._take("("):
            raise self._wrong("'('")
        values = {self._value(name)}
        while self._take(","):
            values.add(self._value(name))
        if not self._take(")"):
            raise self._wrong("',' or ')'")
        return frozenset(values)

    def _value(self, name: str) -> str:
        return axis(name).value(self._word(f"a value of {name}")).name

    def _word(self, wanted: str) -> str:
        word = self._peek()
        if not word or word in ("(", ")", ",", "=", "==", "!="):
            raise self._wrong(wanted)
        self.at += 1
        return word

    def _cell(self, word: str) -> Selector:
        """A cell's id, or an error."""
        if "." not in word and word not in MEANINGS:
            if nearest(word, NAMES):
                axis(word)
            if not nearest(word, MEANINGS):
                raise ConfigError(f"{shown(word)} is neither a cell id nor a selector; {HELP}")
        wanted = Cell.from_id(word)
        return Selector(lambda cell: cell == wanted, lambda known: wanted[: len(known)] == known, _never, (wanted,))

    def _within(self, name: str, values: frozenset[str]) -> Selector:
        index = INDEX[name]
        return Selector(
            lambda cell: cell[index] in values,
            lambda known: index >= len(known) or known[index] in values,
            lambda known: index < len(known) and known[index] in values,
        )

    def _joined(self, combine: Callable[[Iterable[bool]], bool], parts: Sequence[Selector]) -> Selector:
        def over(predicates: Sequence[Predicate]) -> Predicate:
            return lambda values: combine(predicate(values) for predicate in predicates)

        mays, musts = [part.may for part in parts], [part.must for part in parts]
        ids = tuple(cell for part in parts for cell in part.ids) if combine is any else ()
        return Selector(over([part.picks for part in parts]), over(mays), over(musts), ids)

    def _negated(self, inner: Selector) -> Selector:
        return Selector(_flipped(inner.picks), _flipped(inner.must), _flipped(inner.may))


def _flipped(inner: Predicate) -> Predicate:
    return lambda values: not inner(values)


def _never(known: tuple[str, ...]) -> bool:
    return False
