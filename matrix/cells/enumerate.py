"""Enumeration of the product of the axes by prefixes, pruning prefixes that cannot become a cell."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from specmatrix.matrix.cells.axes import AXES, START_AXES
from specmatrix.matrix.cells.constraints import Constraint

# The values of the first axes.
Prefix: TypeAlias = tuple[str, ...]


def starts(
    rules: Sequence[Constraint], may: Callable[[Prefix], bool] | None = None
) -> Iterator[tuple[Prefix, list[Prefix]]]:
    """Yield (start values, request values of its allowed cells) for each start, in axis order.

    may: false to skip all starts with this prefix of start values.
    """
    split = len(START_AXES)
    crossing = sorted({column for c in rules if max(c.columns) >= split for column in c.columns if column < split})
    tails: dict[Prefix, list[Prefix]] = {}
    for start in _grown([()], 0, split, rules, may):
        key = tuple([start[column] for column in crossing])
        if key not in tails:
            tails[key] = [cell[split:] for cell in _grown([start], split, len(AXES), rules)]
        yield start, tails[key]


def _grown(
    prefixes: Iterable[Prefix],
    begin: int,
    stop: int,
    rules: Sequence[Constraint],
    may: Callable[[Prefix], bool] | None = None,
) -> Iterator[Prefix]:
    for column in range(begin, stop):
        judges = [(c.values, c.forbidden) for c in rules if max(c.columns) == column]
        prefixes = _longer(prefixes, AXES[column].names, judges, may)
    return iter(prefixes)


def _longer(
    prefixes: Iterable[Prefix],
    values: Prefix,
    judges: list[tuple[Callable[[Prefix], Prefix], frozenset[Prefix]]],
    may: Callable[[Prefix], bool] | None,
) -> Iterator[Prefix]:
    for prefix in prefixes:
        for value in values:
            longer = (*prefix, value)
            if any(chosen(longer) in forbidden for chosen, forbidden in judges):
                continue
            if may is None or may(longer):
                yield longer
