"""The locked cells of subjects that declare limits: every pair of values that such a subject can run, and its draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from time import perf_counter
from typing import Final

from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, Constraint, tables_hash
from specmatrix.matrix.cover.lock import LATE, STRENGTHS, LockReport, cover, coverage, missing
from specmatrix.matrix.cover.lockfile import LOCK_FILE, Lock, own_lock_file, read, write
from specmatrix.matrix.subjects.protocol import Capability, Subject
from specmatrix.matrix.subjects.registry import BUILT_IN, load_subject
from specmatrix.reports.schema import REFERENCE

# The last stage also runs all cells of the matrix.
OWN_STAGES: Final = ("smoke", "pr")
# Ways of sampling whose draws the gate `distribution` judges.
DRAWN: Final = ("temperature", "topk_topp", "rules")


def limited_subjects() -> Iterator[Subject]:
    """The subjects of this package that declare limits."""
    yield from (subject for name in BUILT_IN if name != REFERENCE and (subject := load_subject(name)).limits())


def limits_of(subject: Subject) -> tuple[Constraint, ...]:
    """The limits of a subject as constraints."""
    return tuple(Constraint(one.why, "impossible", one.why, one.axes, one.forbids) for one in subject.limits())


def rules_of(subject: Subject) -> tuple[Constraint, ...]:
    """The constraints of the matrix plus a subject's limits, without the optional constraints whose alternatives the
    limits exclude."""
    limits = limits_of(subject)
    return (*(rule for rule in CONSTRAINTS if rule.kind != "optional" or _has_others(rule, limits)), *limits)


def _has_others(rule: Constraint, limits: Sequence[Constraint]) -> bool:
    """Whether a subject can run one of the values that make a constraint's cells optional."""
    name, _ = rule.axes
    barred = {value for limit in limits if limit.axes == (name,) for (value,) in limit.forbidden}
    (narrowed,) = {value for _, value in rule.forbidden}
    return any((value, narrowed) not in rule.forbidden for value in axis(name).names if value not in barred)


def drawn_cells(subject: Subject) -> list[Cell]:
    """A cell with draws for each drafter, rule of acceptance and way of sampling, on the first model that the subject
    can run it on, if no other gate judges its sampled tokens. Pairwise coverage alone would leave draws to chance, as
    most values of other axes exclude them."""
    if Capability.SAMPLED_IDENTITY in subject.profile.capabilities:
        return []
    rules = rules_of(subject)
    found: list[Cell] = []
    for name, rule, way in product(axis("algorithm").names, axis("acceptance").names, DRAWN):
        plain = Cell(algorithm=name, acceptance=rule, sampling=way, batch="single" if rule == "match" else "pair")
        cells = (plain._replace(model=model) for model in axis("model").names)
        found += islice((cell for cell in cells if not any(one.applies(cell) for one in rules)), 1)
    return found


def check_own(subject: Subject) -> LockReport:
    """Verify that the subject can run every row of its lock, that every pair is covered, and that draws are judged."""
    start = perf_counter()
    rules, path = rules_of(subject), own_lock_file(subject.name)
    lock = read(path)
    cells = lock.upto(OWN_STAGES[-1])
    problems = [f"{text} is not a cell of the current axes" for text in lock.unreadable]
    if lock.tables != tables_hash(limits_of(subject)):
        problems.append(
            "axes, constraints or limits changed since the lock was written; run `specmatrix lock --extend`"
        )
    problems += [f"{cell.id}: {rule.why}" for cell in cells for rule in rules if rule.applies(cell)]
    problems += [f"{cell.id} is listed twice" for cell in set(cells) if cells.count(cell) > 1]
    problems += [text for stage in OWN_STAGES for text in missing(lock, stage, rules)]
    problems += [f"{cell.id}, whose draws are judged, is missing" for cell in drawn_cells(subject) if cell not in cells]
    sizes = {stage: len(lock.cells[stage]) for stage in OWN_STAGES}
    return LockReport(path, tuple(problems), sizes, coverage(lock, OWN_STAGES[-1], rules), None, perf_counter() - start)


def extend_own(subject: Subject) -> tuple[int, int]:
    """As `lock.extend`, for a subject's own cells."""
    rules, path = rules_of(subject), LOCK_FILE.with_name(f"{subject.name}.lock")
    lock = read(path) if path.exists() else Lock()
    before = len(lock.unreadable) + len(lock.upto(OWN_STAGES[-1]))
    for stage in OWN_STAGES:
        lock.cells[stage] = [c for c in dict.fromkeys(lock.cells[stage]) if not any(r.applies(c) for r in rules)]
    kept = len(lock.upto(OWN_STAGES[-1]))
    for stage, late in product(OWN_STAGES, (frozenset(LATE), frozenset[tuple[str, str]]())):
        if missing(lock, stage, rules):
            lock.cells[stage] += cover(STRENGTHS[stage], lock.upto(stage), rules, late=late)
    lock.cells[OWN_STAGES[-1]] += [cell for cell in drawn_cells(subject) if cell not in lock.upto(OWN_STAGES[-1])]
    lock.unreadable.clear()
    lock.tables = tables_hash(limits_of(subject))
    write(lock, path)
    return before - kept, len(lock.upto(OWN_STAGES[-1])) - kept
