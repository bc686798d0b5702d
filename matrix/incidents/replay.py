"""Runs the states of an incident, each in its own process, and judges its steps."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from msgspec.structs import replace

from specmatrix import __version__
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cells.model_facts import zoo_facts
from specmatrix.matrix.faults.patch import Patch
from specmatrix.matrix.faults.plant import SECONDS, environment, planted, trial
from specmatrix.matrix.faults.processes import Processes
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.incidents.incident import (
    AskedStep,
    CodeState,
    ComparedStep,
    ContractStep,
    Incident,
    PromotedDefault,
    Step,
)
from specmatrix.matrix.incidents.promotion import refusals, without
from specmatrix.matrix.incidents.verdict import differences, wrong_promotions
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.reports.compare import Comparison, compare
from specmatrix.reports.render.comparison import write_comparison
from specmatrix.reports.schema import UNKNOWN, CellResult, Header
from specmatrix.reports.store import ReportWriter, load
from specmatrix.reports.wording import count

STAGE: Final = "incident"
# Processes at a time: base and head.
WORKERS: Final = 2
# The cell whose configuration each `Asked` modifies.
ADAPTIVE: Final = "eagle3.tiers.v2"
ALGORITHMS: Final = "matrix/incidents/algorithms"
SUITE: Final = "specmatrix.matrix.conformance.child"
DRAFT: Final = {"speculative_num_steps": "3"}
CONFIG: Final = "speculative_adaptive_config"


@dataclass(frozen=True, slots=True)
class StateRun:
    """The cells of one state of the code. seconds: from the change to the last cell."""

    records: tuple[CellResult, ...]
    seconds: float

    def of(self, *names: Sequence[str]) -> list[CellResult]:
        """The records of these cells."""
        ran = {name for some in names for name in some}
        return [record for record in self.records if record.id in ran]


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step and what was found.

    comparison: of base and head, if it has them. lines: what else is printed. wrong: how the verdict differs from the
    expected one, in sentences. seconds: from the change to the verdict.
    """

    step: Step
    comparison: Comparison | None
    lines: tuple[str, ...]
    wrong: tuple[str, ...]
    seconds: float


def replay(incident: Incident, folder: Path, seed: int = 0) -> Iterator[JudgedStep]:
    """The incident's steps, judged in order; each leaves its reports and its comparison in its own folder.

    ConfigError if a patch does not apply, or a process ends before its last cell. ReportError if `folder` cannot be
    written.
    """
    compared = [step for step in incident.steps if isinstance(step, ComparedStep)]
    wanted = _wanted(compared)
    verify_cells(order(Cell.from_id(name) for names in wanted.values() for name in names))
    header = replace(run_header("cpu", STAGE, seed, GATES), counters=None)
    if header.commit == UNKNOWN:  # both sides are this code with patches, wherever it came from
        header = replace(header, commit=f"v{__version__}")
    processes = Processes()
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = {state: pool.submit(_run, incident, state, names, seed, processes) for state, names in wanted.items()}
        suites = {
            step: pool.submit(_contract, step, processes) for step in incident.steps if isinstance(step, ContractStep)
        }
        try:
            for step in incident.steps:
                if isinstance(step, ComparedStep):
                    yield _judged(step, runs[step.base].result(), runs[step.head].result(), folder / step.name, header)
                elif isinstance(step, ContractStep):
                    yield suites[step].result()
                else:
                    yield _asked(step)
        finally:  # the threads only wait for their processes
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()


def _wanted(steps: Iterable[ComparedStep]) -> dict[CodeState, tuple[str, ...]]:
    """The cells that each state runs, over all its steps."""
    wanted: dict[CodeState, dict[str, None]] = {}
    for step in steps:
        for state, names in ((step.base, step.dropped), (step.head, step.added)):
            wanted.setdefault(state, {}).update(dict.fromkeys((*step.cells, *names)))
    return {state: tuple(names) for state, names in wanted.items()}


def _run(incident: Incident, state: CodeState, names: Sequence[str], seed: int, processes: Processes) -> StateRun:
    began = monotonic()
    patch = Patch(f"incident {incident.name}, state {state.name!r},", state.edits)
    result = trial(patch, order(map(Cell.from_id, names)), seed, processes=processes, golden="blessed")
    if result.died is not None:
        raise ConfigError(f"{patch.name} has no verdict: {result.died}")
    records = [verdict.record for verdict in result.verdicts if verdict.record is not None]
    if state.edits:  # the cell alone runs the sources without the patch
        records = [replace(record, repro=f"specmatrix incident run {incident.name}") for record in records]
    return StateRun(tuple(records), monotonic() - began)


def _judged(step: ComparedStep, base: StateRun, head: StateRun, folder: Path, header: Header) -> JudgedStep:
    began = monotonic()
    old = _written(folder / "base", header, step.base, base.of(step.cells, step.dropped))
    whole = head.of(step.cells, step.added)
    comparison = compare(load(old), load(_written(folder / "head", header, step.head, whole)), step.acknowledged)
    write_comparison(comparison, folder, (step.base.name, step.head.name))
    required = (*step.cells, *step.added)
    judged = [(each, _refused(each, required, whole)) for each in step.promotions]
    wrong = (*differences(step.expected, comparison), *wrong_promotions(judged))
    lines = tuple(_promotion_line(each, reasons, len(required)) for each, reasons in judged)
    return JudgedStep(step, comparison, lines, wrong, max(base.seconds, head.seconds) + monotonic() - began)


def _written(folder: Path, header: Header, state: CodeState, records: Sequence[CellResult]) -> Path:
    with ReportWriter(folder, replace(header, dirty=header.dirty or bool(state.edits))) as writer:
        for record in records:
            writer.write(record)
    return writer.path


def _refused(promoted: PromotedDefault, required: Sequence[str], records: Sequence[CellResult]) -> tuple[str, ...]:
    evidence = evidence_of(promoted.field, promoted.condition)
    left = records if promoted.shortfall is None else without(records, promoted.shortfall)
    return refusals(required, evidence, left)


def _contract(step: ContractStep, processes: Processes) -> JudgedStep:
    """The conformance suite for a user's algorithm, in a process that imports the step's state of the engine."""
    began = monotonic()
    with planted(Patch(f"step {step.name}", step.state.edits)) as tree:
        results, file = tree / "results.jsonl", tree / ALGORITHMS / step.file
        words = [sys.executable, "-m", SUITE, str(results), str(file), json.dumps(DRAFT)]
        died = processes.run(words, tree, environment(tree), SECONDS)
        if died is not None:
            raise ConfigError(f"step {step.name} has no verdict: {died}")
        *starts, last = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    alike: dict[str, list[str]] = {}
    for start in starts:
        alike.setdefault("; ".join(start["violations"]) or "PASS", []).append(start["start"])
    lines = [f"{' | '.join(names)}: {found}" for found, names in alike.items()]
    if len(alike) == 1:
        lines = [f"all {count(len(starts), 'start')}: {found}" for found in alike]
    lines += [f"refused: {last['refused']}"] if last["refused"] else []
    violated = [violation for start in starts for violation in start["violations"]]
    wrong = []
    if bool(last["refused"]) != bool(step.refused) or step.refused not in (last["refused"] or ""):
        wrong.append(f"{step.file} is {last['refused'] or 'not refused'}, expected {step.refused or 'no refusal'}")
    if bool(violated) != bool(step.violated) or not any(step.violated in each for each in violated or [""]):
        wrong.append(f"{step.file} has {violated[:1] or 'no violation'}, expected {step.violated or 'none'}")
    return JudgedStep(step, None, tuple(lines), tuple(wrong), monotonic() - began)


def _asked(step: AskedStep) -> JudgedStep:
    """Whether the current engine accepts or refuses each configuration."""
    began, lines, wrong = monotonic(), [], []
    cell = Cell.from_id(ADAPTIVE)
    for each in step.asked:
        try:
            resolve(dataclasses.replace(cell.config(), **{CONFIG: None, **each.fields}), zoo_facts(cell))
            found = ""
        except ConfigError as error:
            found = str(error)
        words = " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in each.fields.items())
        lines.append(f"{words}: {'refused: ' + found if found else 'runs'}")
        if not found.startswith(each.refusal) or bool(found) != bool(each.refusal):
            wrong.append(f"{words} is {found or 'accepted'}, expected {each.refusal or 'to run'}")
    return JudgedStep(step, None, tuple(lines), tuple(wrong), monotonic() - began)


def _promotion_line(promoted: PromotedDefault, reasons: Sequence[str], cells: int) -> str:
    gates = ", ".join(evidence_of(promoted.field, promoted.condition))
    outcome = f"refused: {'; '.join(reasons)}" if reasons else f"accepted: {gates} PASS in all {count(cells, 'cell')}"
    lacking = "" if promoted.shortfall is None else f", {promoted.shortfall.text}"
    return f"default of {promoted.field} for {promoted.condition}{lacking}: {outcome}"


def evidence_of(field: str, condition: str) -> tuple[str, ...]:
    """The gates that guard a default. ConfigError if there is no such row."""
    for row in DEFAULTS:
        if (row.field, row.condition) == (field, condition):
            return row.evidence
    raise ConfigError(
        f"no default of {field} has the condition {condition!r}; engine/core/config/defaults.py lists them"
    )
