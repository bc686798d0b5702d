"""Is the frozen choice complete? Recomputed by brute force; shares no code with `matrix.cover`.

Axes that no constraint links are independent. So the product falls apart into components, each small enough to be
enumerated whole, and a combination of values is feasible exactly if its share of every component occurs in it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, product
from typing import TypeAlias

from matrix.axes import AXES, NAMES
from matrix.cell import Cell
from matrix.constraints import CONSTRAINTS, explain

Combination: TypeAlias = tuple[tuple[str, str], ...]


def components() -> list[tuple[str, ...]]:
    """Axes grouped by the constraints that link them, each group in the order of the axes."""
    groups = [{name} for name in NAMES]
    for constraint in CONSTRAINTS:
        linked = [group for group in groups if group & set(constraint.axes)]
        groups = [group for group in groups if group not in linked] + [set().union(*linked)]
    return [tuple(name for name in NAMES if name in group) for group in groups]


def allowed(component: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the component's values that no constraint applies to; other axes at their defaults."""
    judges = [
        ([component.index(name) for name in constraint.axes], constraint.forbidden)
        for constraint in CONSTRAINTS
        if set(constraint.axes) <= set(component)
    ]
    values = product(*(AXES[NAMES.index(name)].names for name in component))
    runs = [
        combination
        for combination in values
        if not any(tuple([combination[column] for column in columns]) in forbidden for columns, forbidden in judges)
    ]
    return [dict(zip(component, combination, strict=True)) for combination in runs]


@cache
def feasible(strength: int) -> frozenset[Combination]:
    """Every combination of `strength` values on different axes that some runnable cell holds."""
    # Per set of axes inside one component: the combinations of their values that occur.
    occurring: dict[tuple[str, ...], list[Combination]] = {(): [()]}
    home: dict[str, tuple[str, ...]] = {}
    for component in components():
        rows = allowed(component)
        home |= dict.fromkeys(component, component)
        for size in range(1, strength + 1):
            for names in combinations(component, size):
                occurring[names] = list({tuple((name, row[name]) for name in names) for row in rows})
    found: set[Combination] = set()
    for names in combinations(NAMES, strength):
        parts = [tuple(n for n in names if home[n] == c) for c in dict.fromkeys(home[n] for n in names)]
        for choice in product(*(occurring[part] for part in parts)):
            found.add(_sorted(pair for share in choice for pair in share))
    return frozenset(found)


def covered(cells: Iterable[Cell], strength: int) -> set[Combination]:
    """The combinations that runnable cells hold."""
    found: set[Combination] = set()
    for cell in cells:
        found.update(combinations(zip(NAMES, cell, strict=True), strength))
    return found


def uncovered(cells: Iterable[Cell], strength: int) -> list[Combination]:
    """Feasible combinations that none of these cells holds; cells that do not run as asked hold nothing."""
    running = [cell for cell in cells if not explain(cell)]
    return sorted(feasible(strength) - covered(running, strength))


def uncovered_sweep(launch: Cell, cells: Iterable[Cell]) -> list[Combination]:
    """Feasible pairs of request values on this launch, exams excepted, that none of these cells holds."""
    requests = [axis for axis in AXES if axis.scope == "request"]
    every = product(*(axis.names for axis in requests))
    names = [axis.name for axis in requests]
    swept = [launch._replace(**dict(zip(names, values, strict=True))) for values in every]
    wanted = _request_pairs(cell for cell in swept if cell.batch != "exam" and not explain(cell))
    held = _request_pairs(cell for cell in cells if cell.launch_key == launch.launch_key and not explain(cell))
    return sorted(wanted - held)


def _request_pairs(cells: Iterable[Cell]) -> set[Combination]:
    names = [axis.name for axis in AXES if axis.scope == "request"]
    return {pair for cell in cells for pair in combinations(((name, getattr(cell, name)) for name in names), 2)}


def _sorted(pairs: Iterable[tuple[str, str]]) -> Combination:
    return tuple(sorted(pairs, key=lambda pair: NAMES.index(pair[0])))
