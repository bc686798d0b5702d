"""Runs the states of an incident, each in a process of its own, and judges its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from msgspec.structs import replace

from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.faults.patch import Patch
from specmatrix.matrix.faults.plant import trial
from specmatrix.matrix.faults.processes import Processes
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.incidents.incident import CodeState, ComparedStep, Incident, PromotedDefault
from specmatrix.matrix.incidents.promotion import refusals, without
from specmatrix.matrix.incidents.verdict import differences
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.reports.compare import Comparison, compare
from specmatrix.reports.render.comparison import write_comparison
from specmatrix.reports.schema import CellResult, Header
from specmatrix.reports.store import ReportWriter, load

STAGE: Final = "incident"
# Processes at a time: base and head.
WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class StateRun:
    """The cells of one state of the code. seconds: from the change to the last cell, the start of the process included."""

    records: tuple[CellResult, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step's comparison. promotions: the reasons against each promoted default. wrong: how the verdict differs from
    the expected one, in sentences. seconds: from the change to the verdict."""

    step: ComparedStep
    comparison: Comparison
    promotions: tuple[tuple[PromotedDefault, tuple[str, ...]], ...]
    wrong: tuple[str, ...]
    seconds: float


def replay(incident: Incident, folder: Path, seed: int = 0) -> Iterator[JudgedStep]:
    """The incident's steps, judged in order; each leaves its reports and its comparison in a folder of its own.

    ConfigError if a patch does not apply, or a process ends before its last cell. ReportError if `folder` cannot be
    written.
    """
    wanted = _wanted(incident)
    verify_cells(order(Cell.from_id(name) for names in wanted.values() for name in names))
    header = replace(run_header("cpu", STAGE, seed, GATES), counters=None)
    processes, runs = Processes(), dict[CodeState, StateRun]()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for step in incident.steps:
                new = [state for state in dict.fromkeys((step.base, step.head)) if state not in runs]
                ended = pool.map(lambda state: _run(incident, state, wanted[state], seed, processes), new)
                runs.update(zip(new, ended, strict=True))
                yield _judged(step, runs, folder / step.name, header)
        finally:  # threads only wait for their processes
            processes.stop()


def _wanted(incident: Incident) -> dict[CodeState, tuple[str, ...]]:
    """The cells that each state runs, over all steps."""
    wanted: dict[CodeState, dict[str, None]] = {}
    for step in incident.steps:
        for state, names in ((step.base, step.dropped), (step.head, step.added)):
            wanted.setdefault(state, {}).update(dict.fromkeys((*step.cells, *names)))
    return {state: tuple(names) for state, names in wanted.items()}


def _run(incident: Incident, state: CodeState, names: Sequence[str], seed: int, processes: Processes) -> StateRun:
    began = monotonic()
    patch = Patch(f"incident {incident.name}, state {state.name!r},", state.edits)
    result = trial(patch, order(map(Cell.from_id, names)), seed, processes=processes, golden="blessed")
    if result.died is not None:
        raise ConfigError(f"{patch.name} has no verdict: {result.died}")
    records = tuple(verdict.record for verdict in result.verdicts if verdict.record is not None)
    return StateRun(records, monotonic() - began)


def _judged(step: ComparedStep, runs: Mapping[CodeState, StateRun], folder: Path, header: Header) -> JudgedStep:
    began = monotonic()
    sides = {"base": (step.base, step.dropped), "head": (step.head, step.added)}
    for side, (state, names) in sides.items():
        ran = {*step.cells, *names}
        with ReportWriter(folder / side, replace(header, dirty=header.dirty or bool(state.edits))) as writer:
            for record in runs[state].records:
                if record.id in ran:
                    writer.write(record)
    comparison = compare(load(folder / "base"), load(folder / "head"), step.acknowledged)
    write_comparison(comparison, folder)
    whole = [record for record in runs[step.head].records if record.id in {*step.cells, *step.added}]
    promotions = tuple((each, _refused(each, whole)) for each in step.promotions)
    wrong = differences(step.expected, comparison, promotions)
    waited = max(runs[step.base].seconds, runs[step.head].seconds)
    return JudgedStep(step, comparison, promotions, wrong, waited + monotonic() - began)


def _refused(promoted: PromotedDefault, records: Sequence[CellResult]) -> tuple[str, ...]:
    evidence = evidence_of(promoted.field, promoted.condition)
    left = records if promoted.shortfall is None else without(records, promoted.shortfall)
    return refusals([record.id for record in records], evidence, left)


def evidence_of(field: str, condition: str) -> tuple[str, ...]:
    """The gates that guard a default. ConfigError if there is no such row."""
    for row in DEFAULTS:
        if (row.field, row.condition) == (field, condition):
            return row.evidence
    raise ConfigError(f"no default of {field} has the condition {condition!r}; engine/core/config/defaults.py lists them")
