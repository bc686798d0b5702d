"""Compression of a table over axes into a few products of values, such as `algorithm=eagle,eagle3 steps=auto`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import Cell

EVERY: Final = "every start"
Values: TypeAlias = tuple[str, ...]
Table: TypeAlias = Mapping[Values, str | None]


class Product(NamedTuple):
    """sides: values of each axis. held: its combinations with a known outcome, equal for all."""

    sides: tuple[Values, ...]
    held: frozenset[Values]


def products(axes: Sequence[str], table: Table) -> Iterator[tuple[str, str]]:
    """(outcome, where) pairs such that each combination of axis values is covered by products of its own outcome only.

    A combination with outcome None may be covered by any. Products grow from the first combination not yet covered,
    independently of the outcomes' texts, so a changed value renames a group and moves nothing.
    """
    for outcome in dict.fromkeys(table.values()):
        if outcome is None:
            continue
        found = list(_grown(axes, table, outcome))
        for one in reversed(found):
            if one.held <= frozenset().union(*(other.held for other in found if other is not one)):
                found.remove(one)
        yield from ((outcome, _where(axes, one)) for one in found)


def where_of(text: str) -> Callable[[Cell], bool]:
    """A predicate for the cells of a product in the format of `products`."""
    if text == EVERY:
        return lambda cell: True
    sides = [(name, frozenset(values.split(","))) for name, _, values in (p.partition("=") for p in text.split(" "))]
    return lambda cell: all(getattr(cell, name) in values for name, values in sides)


def _grown(axes: Sequence[str], table: Table, outcome: str) -> Iterator[Product]:
    mine = [one for one, found in table.items() if found == outcome]
    left = mine
    while left:
        sides: list[Values] = [(value,) for value in left[0]]
        for column, name in reversed(list(enumerate(axes))):
            before, behind = sides[:column], sides[column + 1 :]
            sides[column] = tuple(
                value for value in axis(name).names if _fits(table, (*before, (value,), *behind), outcome)
            )
        held = frozenset(one for one in mine if all(v in side for v, side in zip(one, sides, strict=True)))
        left = [one for one in left if one not in held]
        yield Product(tuple(sides), held)


def _fits(table: Table, sides: Iterable[Values], outcome: str) -> bool:
    return all(table[one] in (outcome, None) for one in product(*sides))


def _where(axes: Sequence[str], one: Product) -> str:
    """The product as text, without values that occur in no combination with a known outcome."""
    parts = []
    for column, name in enumerate(axes):
        met = {values[column] for values in one.held}
        if len(one.sides[column]) < len(axis(name).names):
            parts.append(f"{name}={','.join(value for value in one.sides[column] if value in met)}")
    return " ".join(parts) or EVERY
