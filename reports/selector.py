"""The grammar of cell selectors: `algorithm=eagle3 and topk in (2, 4) and not memory=tight`, or a cell's id."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Generic, TypeAlias, TypeVar

from specmatrix.errors import ConfigError, shown

T = TypeVar("T")
Chooser: TypeAlias = Callable[[str, Mapping[str, str]], bool]
LEXEME: Final = re.compile(r"\s*(?:(!=|==?|[(),])|([\w.-]+))")
# Levels of parentheses and negations.
DEEPEST: Final = 100
HELP: Final = "write axis=value, axis!=value or axis in (a, b), joined with and, or, not and parentheses, or a cell id"


class SelectorParser(ABC, Generic[T]):
    """Recursive-descent parser over the tokens of one selector; `at` is the index of the next token, `depth` the number
    of parentheses and negations around it. Subclasses define the result of a selector, and the existing axes and
    values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lexemes = self._split()
        self.at = self.depth = 0

    @abstractmethod
    def within(self, name: str, values: frozenset[str]) -> T:
        """Cells whose axis `name` has one of the values."""

    @abstractmethod
    def single(self, word: str) -> T:
        """The cell of an id, for a word that is neither followed by an operator nor an axis."""

    @abstractmethod
    def joined(self, combine: Callable[[Iterable[bool]], bool], parts: Sequence[T]) -> T:
        """Any or all of several; they are not nested, as a selector may list thousands of cells."""

    @abstractmethod
    def negated(self, inner: T) -> T:
        """All other cells."""

    def axis(self, name: str) -> None:
        """Check an axis. ConfigError if there is none of this name."""

    def value(self, name: str, word: str) -> str:
        """The value of axis `name` that a word denotes. ConfigError if there is none."""
        return word

    def parse(self) -> T:
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

    def _either(self) -> T:
        selectors = [self._both()]
        while self._take("or"):
            selectors.append(self._both())
        return selectors[0] if len(selectors) == 1 else self.joined(any, selectors)

    def _both(self) -> T:
        selectors = [self._single()]
        while self._take("and"):
            selectors.append(self._single())
        return selectors[0] if len(selectors) == 1 else self.joined(all, selectors)

    def _single(self) -> T:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError(f"selector {shown(self.text)} nests more than {DEEPEST} levels deep")
        selector = self._operand()
        self.depth -= 1
        return selector

    def _operand(self) -> T:
        if self._take("not"):
            return self.negated(self._single())
        if self._take("("):
            selector = self._either()
            if not self._take(")"):
                raise self._wrong("')'")
            return selector
        return self._comparison()

    def _comparison(self) -> T:
        name = self._word("an axis")
        if self._peek() not in ("=", "==", "!=", "in", "not") and not self.is_axis(name):
            return self.single(name)
        self.axis(name)
        if self._take("=", "=="):
            return self.within(name, frozenset({self._value(name)}))
        if self._take("!="):
            return self.negated(self.within(name, frozenset({self._value(name)})))
        if self._take("in"):
            return self.within(name, self._values(name))
        if self._take("not") and self._take("in"):
            return self.negated(self.within(name, self._values(name)))
        raise self._wrong("=, != or in")

    def is_axis(self, name: str) -> bool:
        """Whether an axis has this name."""
        return False

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
        return self.value(name, self._word(f"a value of {name}"))

    def _word(self, wanted: str) -> str:
        word = self._peek()
        if not word or word in ("(", ")", ",", "=", "==", "!="):
            raise self._wrong(wanted)
        self.at += 1
        return word


class _Recorded(SelectorParser[Chooser]):
    """Selects recorded cells by id and axis values, independent of the matrix's current axes."""

    def within(self, name: str, values: frozenset[str]) -> Chooser:
        return lambda cell, axes: axes.get(name) in values

    def single(self, word: str) -> Chooser:
        tokens = sorted(word.split("."))
        return lambda cell, axes: sorted(cell.split(".")) == tokens

    def joined(self, combine: Callable[[Iterable[bool]], bool], parts: Sequence[Chooser]) -> Chooser:
        return lambda cell, axes: combine(part(cell, axes) for part in parts)

    def negated(self, inner: Chooser) -> Chooser:
        return lambda cell, axes: not inner(cell, axes)


@lru_cache(maxsize=256)
def recorded(text: str) -> Chooser:
    """A predicate over recorded cells, by id and axes. ConfigError on a syntax error."""
    return _Recorded(text).parse()
