"""Runs the states of an incident, each in its own process, and judges its steps."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from msgspec.structs import replace

from specmatrix import HOME, __version__
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell, order, zoo_facts
from specmatrix.matrix.faults.fault import Patch
from specmatrix.matrix.faults.plant import SECONDS, Processes, environment, planted, trial
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.reports.compare import Comparison, compare
from specmatrix.reports.render.comparison import write_comparison
from specmatrix.reports.schema import UNKNOWN, CellResult, Header
from specmatrix.reports.store import ReportWriter, load
from specmatrix.reports.wording import count
from tools.incidents.incident import AskedStep, CodeState, ComparedStep, ContractStep, Incident, PromotedDefault, Step
from tools.incidents.verdict import differences, refusals, without

# The cell whose configuration each `Asked` modifies.
ADAPTIVE: Final = "eagle3.tiers.v2"
ALGORITHMS: Final = "tools/incidents/algorithms"
SUITE: Final = "specmatrix.matrix.conformance.child"
DRAFT: Final = {"speculative_num_steps": "3"}


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step and what was found.

    lines: what is printed besides the comparison of base and head, if it has them. wrong: how the verdict differs from
    the expected one, in sentences. seconds: from the change to the verdict.
    """

    step: Step
    lines: Sequence[str]
    wrong: Sequence[str]
    seconds: float
    comparison: Comparison | None = None


def replay(incident: Incident, folder: Path, seed: int = 0) -> Iterator[JudgedStep]:
    """The incident's steps, judged in order; each leaves its reports and its comparison in its own folder.

    ConfigError if a patch does not apply, or a process ends before its last cell.
    """
    wanted = _wanted(step for step in incident.steps if isinstance(step, ComparedStep))
    verify_cells(order(Cell.from_id(name) for names in wanted.values() for name in names))
    processes = Processes()
    with ThreadPoolExecutor(2) as pool:  # base and head
        runs = {state: pool.submit(_run, incident, state, names, seed, processes) for state, names in wanted.items()}
        try:
            for step in incident.steps:
                if isinstance(step, AskedStep):
                    yield _asked(step)
                elif isinstance(step, ContractStep):
                    yield _contract(step, processes)
                else:
                    (base, first), (head, second) = runs[step.base].result(), runs[step.head].result()
                    yield _compared(step, base, head, folder / step.name, max(first, second))
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


def _run(
    incident: Incident, state: CodeState, names: Sequence[str], seed: int, processes: Processes
) -> tuple[list[CellResult], float]:
    """The records of a state's cells, and the seconds from the change to the last of them."""
    began = monotonic()
    patch = Patch(f"incident {incident.name}, state {state.name!r},", state.edits)
    result = trial(patch, order(map(Cell.from_id, names)), seed, processes=processes, golden="blessed")
    if result.died is not None:
        raise ConfigError(f"{patch.name} has no verdict: {result.died}")
    records = [verdict.record for verdict in result.verdicts if verdict.record is not None]
    if state.edits:  # the cell alone runs the sources without the patch
        records = [replace(record, repro=f"python -m tools.incidents {incident.name}") for record in records]
    return records, monotonic() - began


def _compared(
    step: ComparedStep, base: Sequence[CellResult], head: Sequence[CellResult], folder: Path, seconds: float
) -> JudgedStep:
    began = monotonic()
    own = [record for record in head if record.id in (*step.cells, *step.added)]
    old = _written(folder / "base", step.base, [record for record in base if record.id in (*step.cells, *step.dropped)])
    comparison = compare(load(old), load(_written(folder / "head", step.head, own)), step.acknowledged)
    write_comparison(comparison, folder, (step.base.name, step.head.name))
    lines, wrong = [], [*differences(step.expected, comparison)]
    for each in step.promotions:
        line, reasons = promotion(each, (*step.cells, *step.added), own)
        lines.append(line)
        if reasons != each.refused:
            got, wanted = ("; ".join(texts) or "accepted" for texts in (reasons, each.refused))
            wrong.append(f"the promotion is {got}, expected {wanted}")
    return JudgedStep(step, lines, wrong, seconds + monotonic() - began, comparison)


def _written(folder: Path, state: CodeState, records: Sequence[CellResult]) -> Path:
    header: Header = replace(run_header("cpu", "incident", 0, GATES), counters=None)
    # Both sides are this code with patches, wherever it came from.
    commit = f"v{__version__}" if header.commit == UNKNOWN else header.commit
    with ReportWriter(folder, replace(header, commit=commit, dirty=header.dirty or bool(state.edits))) as writer:
        for record in records:
            writer.write(record)
    return writer.path


def promotion(
    each: PromotedDefault, required: Sequence[str], records: Sequence[CellResult]
) -> tuple[str, tuple[str, ...]]:
    """(outcome of a promoted default in one line, reasons against it)."""
    evidence = evidence_of(each.field, each.condition)
    left = records if each.shortfall is None else without(records, each.shortfall)
    reasons = refusals(required, evidence, left)
    passed = f"accepted: {', '.join(evidence)} PASS in all {count(len(required), 'cell')}"
    lacking = "" if each.shortfall is None else f", {each.shortfall.text}"
    outcome = f"refused: {'; '.join(reasons)}" if reasons else passed
    return f"default of {each.field} for {each.condition}{lacking}: {outcome}", reasons


def evidence_of(field: str, condition: str) -> tuple[str, ...]:
    """The gates that guard a default."""
    [evidence] = [row.evidence for row in DEFAULTS if (row.field, row.condition) == (field, condition)]
    return evidence


def _contract(step: ContractStep, processes: Processes) -> JudgedStep:
    """The conformance suite for a user's algorithm, in a process that imports the step's state of the engine."""
    began = monotonic()
    with planted(Patch(f"step {step.name}", step.state.edits)) as tree:
        shutil.copytree(HOME / "tools", tree / "tools")
        results = tree / "results.jsonl"
        words = [sys.executable, "-m", SUITE, str(results), str(tree / ALGORITHMS / step.file), json.dumps(DRAFT)]
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
    refused = last["refused"] or ""
    lines += [f"refused: {refused}"] if refused else []
    violated = [violation for start in starts for violation in start["violations"]]
    wrong = []
    if bool(refused) != bool(step.refused) or step.refused not in refused:
        wrong.append(f"{step.file} is {refused or 'not refused'}, expected {step.refused or 'no refusal'}")
    if bool(violated) != bool(step.violated) or not any(step.violated in each for each in violated or [""]):
        wrong.append(f"{step.file} has {violated[:1] or 'no violation'}, expected {step.violated or 'none'}")
    return JudgedStep(step, lines, wrong, monotonic() - began)


def _asked(step: AskedStep) -> JudgedStep:
    """Whether the current engine accepts or refuses each configuration."""
    began, lines, wrong = monotonic(), [], []
    cell = Cell.from_id(ADAPTIVE)
    for each in step.asked:
        try:
            config = dataclasses.replace(cell.config(), **{"speculative_adaptive_config": None, **each.fields})
            resolve(config, zoo_facts(cell))
            found = ""
        except ConfigError as error:
            found = str(error)
        words = " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in each.fields.items())
        lines.append(f"{words}: {'refused: ' + found if found else 'runs'}")
        if not found.startswith(each.refusal) or bool(found) != bool(each.refusal):
            wrong.append(f"{words} is {found or 'accepted'}, expected {each.refusal or 'to run'}")
    return JudgedStep(step, lines, wrong, monotonic() - began)
