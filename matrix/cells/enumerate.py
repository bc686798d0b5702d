"""Enumeration of the product of the axes by prefixes, pruning prefixes that cannot become a cell."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from specmatrix.matrix.cells.axes import AXES, LAUNCH
from specmatrix.matrix.cells.constraints import Constraint

# The values of the first axes.
Prefix: TypeAlias = tuple[str, ...]


def launches(
    rules: Sequence[Constraint], may: Callable[[Prefix], bool] | None = None
) -> Iterator[tuple[Prefix, list[Prefix]]]:
    """The launches in axis order, each with its launch values and the request values of its cells that no rule forbids.

    may: false to skip all launches with this prefix of launch values.
    """
    split = len(LAUNCH)
    crossing = sorted({column for c in rules if max(c.columns) >= split for column in c.columns if column < split})
    tails: dict[Prefix, list[Prefix]] = {}
    for launch in _grown([()], 0, split, rules, may):
        key = tuple([launch[column] for column in crossing])
        if key not in tails:
            tails[key] = [cell[split:] for cell in _grown([launch], split, len(AXES), rules)]
        yield launch, tails[key]


def _grown(
    prefixes: Iterable[Prefix],
    start: int,
    stop: int,
    rules: Sequence[Constraint],
    may: Callable[[Prefix], bool] | None = None,
) -> Iterator[Prefix]:
    for column in range(start, stop):
        judges = [(c.columns, c.forbidden) for c in rules if max(c.columns) == column]
        prefixes = _longer(prefixes, AXES[column].names, judges, may)
    return iter(prefixes)


def _longer(
    prefixes: Iterable[Prefix],
    values: Prefix,
    judges: list[tuple[tuple[int, ...], frozenset[Prefix]]],
    may: Callable[[Prefix], bool] | None,
) -> Iterator[Prefix]:
    for prefix in prefixes:
        for value in values:
            longer = (*prefix, value)
            if any(tuple([longer[c] for c in columns]) in forbidden for columns, forbidden in judges):
                continue
            if may is None or may(longer):
                yield longer
