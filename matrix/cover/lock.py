"""Verification and extension of the lock file: `check` recomputes its required content, `extend` appends to it.

Choice of cells: enumeration of the runnable ones, a t-wise cover by covertable, and negative cells.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, product
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from specmatrix.matrix.cells.axes import AXES, NAMES, OWN_VALUES, START_AXES, axis, describe
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cells.constraints import CONSTRAINTS, LEFT_OUT, Constraint, explain, tables_hash
from specmatrix.matrix.cells.enumerate import starts
from specmatrix.matrix.cover.lockfile import LOCK_FILE, STAGES, Lock, read, write
from specmatrix.matrix.cover.verify import Combination, feasible, uncovered, uncovered_sweep

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


SHOWN: Final = 5
SWEEPS: Final[dict[str, list[str]]] = TABLE["sweeps"]
# Pairs of an axis and a value.
LATE, APART = ([(name, one) for name in TABLE[part] for one in TABLE[part][name]] for part in ("late", "apart"))
# Stage to cell id to the regression that the cell covers.
PRESETS: Final = msgspec.yaml.decode(
    Path(__file__).with_name("regressions.yaml").read_bytes(), type=dict[str, dict[str, str]]
)


@dataclass(frozen=True, slots=True)
class LockReport:
    """The result of a check. cells: own cells per stage. pairs, triples: (covered, feasible) by the runnable cells."""

    path: Path
    problems: tuple[str, ...]
    cells: dict[str, int]
    pairs: tuple[int, int]
    triples: tuple[int, int] | None
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.problems

    def text(self) -> str:
        """The report as text, problems first."""
        runs = accumulate(self.cells.values())
        sizes = "; ".join(
            f"{stage} {all_}" + (f", {own} of its own" if own != all_ else "")
            for (stage, own), all_ in zip(self.cells.items(), runs, strict=True)
        )
        counts = f"pairs {self.pairs[0]}/{self.pairs[1]}"
        counts += f", triples {self.triples[0]}/{self.triples[1]}" if self.triples else ""
        verdict = "complete" if self.ok else f"{len(self.problems)} problems"
        return "\n".join([*self.problems, f"{self.path.name}: {verdict}; {sizes}; {counts}; {self.seconds:.2f} s"])


def check(path: Path = LOCK_FILE, full: bool = False) -> LockReport:
    """Verify that every row is a cell, every required row is there, and every pair (full: triple) is covered."""
    start = perf_counter()
    lock = read(path)
    problems = list(_problems(lock))
    pairs = coverage(lock, "pr")
    triples = coverage(lock, "nightly") if full else None
    problems += missing(lock, "smoke") + missing(lock, "pr") + (missing(lock, "nightly") if full else [])
    sizes = {stage: len(lock.cells[stage]) for stage in STAGES}
    return LockReport(path, tuple(problems), sizes, pairs, triples, perf_counter() - start)


def _problems(lock: Lock) -> Iterator[str]:
    """Invalid rows and missing required rows."""
    if lock.tables != tables_hash():
        yield "axes or constraints changed since the lock was written; run `specmatrix lock --extend`"
    for text in lock.unreadable:
        yield f"{text} is not a cell of the current axes"
    seen: set[Cell] = set()
    for cell in lock.upto(STAGES[-1]):
        yield from _row_problems(cell, lock.notes.get(cell, ""), cell in seen)
        seen.add(cell)
    for stage in STAGES:
        for text, note in PRESETS[stage].items():
            if Cell.from_id(text) not in lock.upto(stage):
                yield f"preset {text} of stage {stage} is missing ({note})"
        yield from _missing_negatives(lock, stage)
        for text in SWEEPS[stage]:
            gaps = uncovered_sweep(Cell.from_id(text), lock.upto(stage))
            if gaps:
                yield f"sweep of {text} lacks {len(gaps)} pairs, first {describe(gaps[0])}"


def _row_problems(cell: Cell, note: str, repeated: bool) -> Iterator[str]:
    applied = explain(cell)
    if repeated:
        yield f"{cell.id} is listed twice"
    for constraint in applied:
        if constraint.kind in LEFT_OUT:
            yield f"{cell.id} is {constraint.kind}: {constraint.why}"
        elif note != f"{constraint.kind} by {constraint.name}":
            yield f"{cell.id} is {constraint.kind} by {constraint.name}, but its note says {note or 'nothing'!r}"
    if not applied and " by " in note and note.split()[0] in ("refused", "rewritten"):
        yield f"{cell.id} runs, but its note says {note!r}"


def _missing_negatives(lock: Lock, stage: str) -> Iterator[str]:
    cells = [explain(cell) for cell in lock.upto(stage)]
    for constraint in negative_constraints():
        need = len(negatives(constraint, NEGATIVES[stage]))
        have = cells.count((constraint,))
        if have < need:
            yield f"stage {stage} has {have} of {need} cells that are {constraint.kind} by {constraint.name}"


def missing(lock: Lock, stage: str, rules: tuple[Constraint, ...] = CONSTRAINTS) -> list[str]:
    """A message on the uncovered combinations of a stage, if any."""
    strength = STRENGTHS[stage]
    gaps = _gaps(lock, stage, rules)
    if not gaps:
        return []
    first = "; ".join(describe(gap) for gap in gaps[:SHOWN])
    return [f"stage {stage} leaves {len(gaps)} combinations of {strength} values uncovered: {first}"]


def _gaps(lock: Lock, stage: str, rules: tuple[Constraint, ...]) -> list[Combination]:
    """The combinations that a stage must cover and does not."""
    return [gap for gap in uncovered(lock.upto(stage), STRENGTHS[stage], rules) if _due(gap, stage)]


def _due(combination: Combination, stage: str) -> bool:
    return stage == STAGES[-1] or {*LATE}.isdisjoint(combination)


def coverage(lock: Lock, stage: str, rules: tuple[Constraint, ...] = CONSTRAINTS) -> tuple[int, int]:
    """The (covered, feasible) combinations of a stage."""
    wanted = [combination for combination in feasible(STRENGTHS[stage], rules) if _due(combination, stage)]
    return len(wanted) - len(_gaps(lock, stage, rules)), len(wanted)


def extend(path: Path = LOCK_FILE) -> tuple[int, int]:
    """Drop rows that are no longer cells and append the missing ones; returns the numbers of (dropped, added) rows.

    Starts with an empty lock if there is no file. Takes seconds if nothing is missing, minutes if triples are.
    """
    lock = read(path) if path.exists() else Lock()
    dropped = len(lock.unreadable) + _drop(lock)
    before = len(lock.upto(STAGES[-1]))
    for stage in STAGES:
        _add_required(lock, stage)
        gaps = _gaps(lock, stage, CONSTRAINTS)
        for value in (None, *APART):
            if any(value in gap if value else {*APART}.isdisjoint(gap) for gap in gaps):
                barred = APART if value is None else [(value[0], other) for other in axis(value[0]).names]
                late = frozenset(barred) - {value} if stage == STAGES[-1] else frozenset(LATE)
                known = [cell for cell in lock.upto(stage) if not explain(cell)]
                kept = [cell for cell in known if late.isdisjoint(cell.values.items())]
                lock.cells[stage] += cover(STRENGTHS[stage] - bool(value), kept, late=late)
    _lift(lock)
    lock.unreadable.clear()
    lock.tables = tables_hash()
    write(lock, path)
    return dropped, len(lock.upto(STAGES[-1])) - before


def _drop(lock: Lock) -> int:
    """Remove duplicates and rows that are no longer cells; renew the notes of negative cells."""
    dropped, seen = 0, set()
    for stage in STAGES:
        kept = []
        for cell in lock.cells[stage]:
            kinds = {constraint.kind for constraint in explain(cell)}
            if cell in seen or kinds & LEFT_OUT:
                dropped += 1
                continue
            seen.add(cell)
            kept.append(cell)
            _renew(lock, cell)
        lock.cells[stage] = kept
    return dropped


def _renew(lock: Lock, cell: Cell) -> None:
    applied = explain(cell)
    if applied:
        lock.notes[cell] = f"{applied[0].kind} by {applied[0].name}"
    elif lock.notes.get(cell, "").startswith(("refused by ", "rewritten by ")):
        del lock.notes[cell]


def _add_required(lock: Lock, stage: str) -> None:
    """Add the missing presets, negative cells and sweeps of a stage."""
    known = lock.upto(stage)
    wanted = [cell for text in PRESETS[stage] if (cell := Cell.from_id(text)) not in known]
    for constraint in negative_constraints():
        have = sum(explain(cell) == (constraint,) for cell in known)
        fresh = [cell for cell in negatives(constraint, NEGATIVES[stage]) if cell not in known]
        wanted += fresh[: max(len(negatives(constraint, NEGATIVES[stage])) - have, 0)]
    for start in map(Cell.from_id, SWEEPS[stage]):
        if uncovered_sweep(start, [*known, *wanted]):
            wanted += sweep(start, [*known, *wanted])
    lock.cells[stage] += wanted
    for cell in wanted:
        if cell.id in PRESETS[stage]:
            lock.notes[cell] = PRESETS[stage][cell.id]
        _renew(lock, cell)


def _lift(lock: Lock) -> None:
    """Remove cells from later stages that an earlier stage has gained."""
    seen: set[Cell] = set()
    for stage in STAGES:
        lock.cells[stage] = [cell for cell in lock.cells[stage] if cell not in seen]
        seen.update(lock.cells[stage])
