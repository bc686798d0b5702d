"""Choice of cells: enumeration of the runnable ones, a t-wise cover by covertable, and negative cells."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.matrix.cells.axes import AXES, NAMES, OWN_VALUES, START_AXES
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cells.constraints import CONSTRAINTS, LEFT_OUT, Constraint, explain
from specmatrix.matrix.cells.enumerate import starts

# Another salt gives another cover of about the same size; this one is as good as any.
SALT: Final = "specmatrix"


# stages.yaml explains its parts.
TABLE: Final[dict[str, Any]] = msgspec.yaml.decode(Path(__file__).with_name("stages.yaml").read_bytes())
NEGATIVES, STRENGTHS = TABLE["negatives"], TABLE["strengths"]


def cover(
    strength: int,
    kept: Iterable[Cell] = (),
    rules: Sequence[Constraint] = CONSTRAINTS,
    late: frozenset[tuple[str, str]] = frozenset(),
) -> list[Cell]:
    """New cells that together with `kept` cover every combination of `strength` values that is feasible under `rules`,
    except those with the values `late` of their axes.

    Deterministic. Infeasible combinations are skipped; `matrix.cover.verify` proves that nothing else is.
    """
    barred = late | {(rule.axes[0], value) for rule in rules if len(rule.axes) == 1 for (value,) in rule.forbidden}
    factors = {axis.name: [value for value in axis.names if (axis.name, value) not in barred] for axis in AXES}
    # covertable is slow to import and needed only to extend the lock file.
    from covertable.main import Controller

    known = {cell: cell.values for cell in kept}
    conditions = _conditions(rules, factors)
    controller = Controller(factors, strength=strength, salt=SALT, presets=[*known.values()], constraints=conditions)
    return [cell for cell in dict.fromkeys(Cell(**row) for row in controller.make_async()) if cell not in known]


def sweep(
    start: Cell, kept: Iterable[Cell] = (), strength: int = 2, fits: Callable[[Cell], bool] = lambda cell: True
) -> list[Cell]:
    """New cells that together with `kept` cover every combination of `strength` request values, except exams, of the
    cells of this start for which `fits` holds. Greedy: next is the cell with most uncovered combinations, the cheapest
    of equals.
    """
    split, rules = len(START_AXES), [rule for rule in CONSTRAINTS if rule.kind != "rewritten"]
    [(key, tails)] = [*starts(rules, lambda prefix: prefix == start[: len(prefix)])] or [(start[:split], [])]
    here = sorted((Cell._make(key + tail) for tail in tails), key=lambda cell: cell.seconds)

    def combined(cell: Cell) -> set[tuple[tuple[str, str], ...]]:
        return {*combinations(zip(NAMES[split:], cell[split:], strict=True), strength)}

    held = {one for cell in kept if cell.start_key == start.start_key for one in combined(cell)}
    left = {cell: combined(cell) - held for cell in here if cell.batch != "gsm"}
    found: list[Cell] = []
    while left and (new := left.pop(best := max(left, key=lambda cell: len(left[cell])))):
        if fits(best):
            found.append(best)
            left = {cell: rest - new for cell, rest in left.items()}
    return found


def _conditions(rules: Sequence[Constraint], factors: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The constraints for covertable, with their projections onto fewer axes.

    covertable evaluates a condition once all its axes have values; the projections reveal a dead end earlier.
    Conditions on the same axes are merged and vacuous ones dropped, as each costs a call per candidate value.
    """
    found: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for axes in {rule.axes for rule in rules}:
        names = [factors[name] for name in axes]
        banned = frozenset().union(*(rule.forbidden for rule in rules if rule.axes == axes))
        allowed = [values for values in product(*names) if values not in banned]
        for size in range(2, len(axes) + 1):
            for columns in combinations(range(len(axes)), size):
                seen = {tuple(values[column] for column in columns) for values in allowed}
                named = tuple(axes[column] for column in columns)
                found[named] = found[named] & seen if named in found else seen
    whole = {named: prod(len(factors[name]) for name in named) for named in found}
    return [_condition(named, found[named]) for named in sorted(found) if len(found[named]) < whole[named]]


def _condition(names: tuple[str, ...], seen: set[tuple[str, ...]]) -> dict[str, Any]:
    def holds(row: dict[str, str]) -> bool:
        return tuple(row[name] for name in names) in seen

    return {"operator": "fn", "requires": list(names), "evaluate": holds}


def own_cells(stage: str, cells: Sequence[Cell]) -> list[Cell]:
    """The cells for values that plug-ins added: a stage's `cells` with each such value substituted, if valid and if
    they add a combination of `strength` - 1 values. An algorithm replaces only another drafter."""
    found: list[Cell] = []
    for name, value in OWN_VALUES:
        of = [cell for cell in (*cells, *found) if name != "algorithm" or cell.algorithm != "none"]
        found += _showing(dict.fromkeys(cell._replace(**{name: value}) for cell in of), STRENGTHS[stage] - 1)
    return found


def _showing(cells: Iterable[Cell], size: int) -> Iterator[Cell]:
    """Yield the valid cells that have a combination of `size` values not seen in an earlier one."""
    seen = set[tuple[tuple[int, str], ...]]()
    for cell in cells:
        fresh = set(combinations(enumerate(cell), size)) - seen
        if fresh and not any(rule.kind in LEFT_OUT for rule in explain(cell)):
            seen |= fresh
            yield cell


def negatives(constraint: Constraint, count: int) -> list[Cell]:
    """Up to `count` cells to which only this refused or rewritten constraint applies, spread over its combinations."""
    cells = order(
        cell
        for values in constraint.forbidden
        if explain(cell := _background(dict(zip(constraint.axes, values, strict=True)))) == (constraint,)
    )
    wanted = min(count, len(cells))
    return [cells[index * (len(cells) - 1) // max(wanted - 1, 1)] for index in range(wanted)]


def _background(values: dict[str, str]) -> Cell:
    """A cell with these values; the rest defaults to an EAGLE3 chain with two requests, sampled if drafts are drawn,
    with grammars if drafts follow them, and where steps are mixed, with what these need."""
    own = {"algorithm": "eagle3", "steps": "3", "batch": "pair"}
    if "algorithm" in values:
        own = {"batch": "pair"}
    if values.get("acceptance", "match") != "match":
        own |= {"sampling": "mixed"} | ({"steps": "5"} if "topk" in values else {})
    if values.get("mixed_chunk", "off") == "on":
        own |= {"prefill_chunk": "7", "spec_version": "v1", "batch": "mixed_lengths", "sampling": "mixed"}
    if values.get("drafting", "stepwise") == "parallel":
        own |= {"steps": "3"}
    if values.get("constrained_drafts", "off") == "on":
        own |= {"batch": "mixed_lengths", "grammar": "json"}
    return Cell.of(own | values)


def negative_constraints() -> tuple[Constraint, ...]:
    """The refused and rewritten constraints, each of which needs its own cells."""
    return tuple(constraint for constraint in CONSTRAINTS if constraint.kind in ("refused", "rewritten"))
