"""Independent verification of the cover by brute force; shares no code with `matrix.cover.lock`.

Axes that no constraint links are independent, so the product decomposes into components small enough to enumerate. A
combination of values is feasible exactly if its projection onto every component occurs there. A few axes, the pivots,
would link all components, so each combination of their values is processed separately.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, product
from typing import Final, TypeAlias

from specmatrix.matrix.cells.axes import AXES, NAMES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, Constraint, explain

Combination: TypeAlias = tuple[tuple[str, str], ...]


# Constraints link them with every other axis; limits of subjects also link the algorithm with axes of requests.
PIVOTS: Final = ("tp", "model", "adaptive", "acceptance", "verify", "mixed_chunk", "drafting", "numerics", "grammar")
SUBJECT_PIVOTS: Final = (*PIVOTS, "algorithm")


def components(rules: Sequence[Constraint] = CONSTRAINTS, pivots: Sequence[str] = PIVOTS) -> list[tuple[str, ...]]:
    """The axes except the pivots, grouped by the constraints that link them, each group in axis order."""
    groups = [{name} for name in NAMES if name not in pivots]
    for constraint in rules:
        if linked := [group for group in groups if group & set(constraint.axes)]:
            groups = [group for group in groups if group not in linked] + [set().union(*linked)]
    return [tuple(name for name in NAMES if name in group) for group in groups]


def allowed(
    component: Sequence[str],
    chosen: Sequence[str],
    rules: Sequence[Constraint] = CONSTRAINTS,
    pivots: Sequence[str] = PIVOTS,
) -> list[dict[str, str]]:
    """Every combination of the component's values that no constraint forbids with the chosen values of the pivots, the
    other axes at their defaults."""
    named = (*pivots, *component)
    judges = [
        ([named.index(name) for name in constraint.axes], constraint.forbidden)
        for constraint in rules
        if set(constraint.axes) <= set(named)
    ]
    runs: list[tuple[str, ...]] = [()]
    # Extended axis by axis, so that forbidden combinations are pruned early.
    for place, values in enumerate([*([value] for value in chosen), *(AXES[NAMES.index(n)].names for n in component)]):
        runs = [(*row, value) for row in runs for value in values]
        for columns, forbidden in judges:
            if max(columns) == place:
                runs = [row for row in runs if tuple([row[column] for column in columns]) not in forbidden]
    return [dict(zip(named, row, strict=True)) for row in runs]


@cache
def feasible(strength: int, rules: tuple[Constraint, ...] = CONSTRAINTS) -> frozenset[Combination]:
    """Every combination of `strength` values of different axes that occurs in a cell that no rule forbids."""
    if strength == 1:
        return frozenset((value,) for pair in feasible(2, rules) for value in pair)
    pivots = PIVOTS if rules == CONSTRAINTS else SUBJECT_PIVOTS
    groups = components(rules, pivots)
    every = [tuple(row.values()) for row in allowed(pivots, (), rules, ())]
    return frozenset().union(*(_feasible(strength, pivots, chosen, rules, groups) for chosen in every))


def _feasible(
    strength: int,
    pivots: Sequence[str],
    chosen: Sequence[str],
    rules: Sequence[Constraint],
    groups: Sequence[tuple[str, ...]],
) -> set[Combination]:
    """The feasible combinations in cells with the chosen values of the pivots."""
    # Per set of axes within one component: the combinations of their values that occur.
    occurring: dict[tuple[str, ...], list[Combination]] = {(): [()]}
    occurring |= {(name,): [((name, value),)] for name, value in zip(pivots, chosen, strict=True)}
    home: dict[str, tuple[str, ...]] = {name: (name,) for name in pivots}
    for component in groups:
        rows = allowed(component, chosen, rules, pivots)
        if not rows:
            return set()
        home |= dict.fromkeys(component, component)
        columns = {name: [row[name] for row in rows] for name in component}
        for size in range(1, strength + 1):
            for names in combinations(component, size):
                values = set(zip(*map(columns.__getitem__, names), strict=True))
                occurring[names] = [tuple(zip(names, each, strict=True)) for each in values]
    found: set[Combination] = set()
    for names in combinations(NAMES, strength):
        parts = [tuple(n for n in names if home[n] == c) for c in dict.fromkeys(home[n] for n in names)]
        for choice in product(*(occurring[part] for part in parts)):
            found.add(_sorted(pair for share in choice for pair in share))
    return found


def covered(cells: Iterable[Cell], strength: int) -> set[Combination]:
    """The combinations that occur in the runnable cells."""
    found: set[Combination] = set()
    for cell in cells:
        found.update(combinations(zip(NAMES, cell, strict=True), strength))
    return found


def uncovered(cells: Iterable[Cell], strength: int, rules: tuple[Constraint, ...] = CONSTRAINTS) -> list[Combination]:
    """Feasible combinations that none of these cells covers; cells that a rule forbids cover nothing."""
    running = [cell for cell in cells if not any(rule.applies(cell) for rule in rules)]
    return sorted(feasible(strength, rules) - covered(running, strength))


def uncovered_sweep(start: Cell, cells: Iterable[Cell]) -> list[Combination]:
    """Feasible pairs of request values on this start, except exams, that none of these cells covers."""
    requests = [axis for axis in AXES if axis.scope == "request"]
    every = product(*(axis.names for axis in requests))
    names = [axis.name for axis in requests]
    swept = [start._replace(**dict(zip(names, values, strict=True))) for values in every]
    wanted = _request_pairs(cell for cell in swept if cell.batch != "gsm" and not explain(cell))
    held = _request_pairs(cell for cell in cells if cell.start_key == start.start_key and not explain(cell))
    return sorted(wanted - held)


def _request_pairs(cells: Iterable[Cell]) -> set[Combination]:
    names = [axis.name for axis in AXES if axis.scope == "request"]
    return {pair for cell in cells for pair in combinations(((name, getattr(cell, name)) for name in names), 2)}


def _sorted(pairs: Iterable[tuple[str, str]]) -> Combination:
    return tuple(sorted(pairs, key=lambda pair: NAMES.index(pair[0])))
