"""Verification and extension of the lock file: `check` recomputes its required content, `extend` appends to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from specmatrix.matrix.cells.axes import axis, describe
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, LEFT_OUT, Constraint, explain, tables_hash
from specmatrix.matrix.cover.generate import NEGATIVES, STRENGTHS, TABLE, cover, negative_constraints, negatives, sweep
from specmatrix.matrix.cover.lockfile import LOCK_FILE, STAGES, Lock, read, write
from specmatrix.matrix.cover.verify import Combination, feasible, uncovered, uncovered_sweep

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
