"""The record of a cell: its requested and effective configuration and its result. All records are built here."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from traceback import TracebackException, extract_tb
from typing import Any, Final

from msgspec import structs

from specmatrix import HOME
from specmatrix.errors import ConfigError, EngineBug, NotFiniteError, RequestError
from specmatrix.matrix.cells.tiers import repro
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.subjects.engine_process import EngineFailed
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, Stalled
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.reports.schema import (
    REFERENCE,
    CellRecord,
    CellResult,
    CellState,
    FailingRequest,
    GateResult,
    ReasonRecord,
    RewriteRecord,
    StartRecord,
    check_cell,
)

LAST_FRAMES: Final = 3


class BaselineError(Exception):
    """The baseline of a cell crashed, so the cell itself has no result. cause: the original exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"baseline: {type(cause).__name__}: {cause}")
        self.cause = cause


def judged(
    prepared: PreparedCell,
    outcomes: Sequence[Outcome],
    engine: RunningEngine | None = None,
    evidence: Mapping[str, int] | None = None,
    command: EngineCommand | None = None,
    first_red: FailingRequest | None = None,
) -> CellResult:
    """The record of a cell with gate outcomes; NOT MEASURED without any."""
    states = {outcome.state for outcome in outcomes}
    lacking = State.NOT_MEASURED in states or not outcomes
    state: CellState = "FAIL" if State.FAIL in states else "NOT MEASURED" if lacking else "PASS"
    error = None if outcomes else "no gate applied to this cell"
    made = record(prepared, state, engine, evidence, outcomes, error, command)
    return structs.replace(made, first_red=first_red)


def with_outcome(result: CellResult, outcome: Outcome) -> CellResult:
    """The record of a cell that passed, with the outcome of one more gate."""
    made = structs.replace(result, state=outcome.state.value, gates=(*result.gates, _gate(outcome)))
    check_cell(made)
    return made


def crashed(
    prepared: PreparedCell,
    error: Exception,
    command: EngineCommand | None = None,
    engine: RunningEngine | None = None,
    evidence: Mapping[str, int] | None = None,
    first_red: FailingRequest | None = None,
) -> CellResult:
    """The record of a cell whose run raised: FAIL for an EngineBug, which the engine detected itself, for a request of
    the cell that the engine refused or gave numbers that are not finite, for a baseline that never ends, and for an
    engine that failed in its own process or refused a command that its subject translated, else INFRA. command: the
    translated cell, None if translation was not reached. engine: None if it did not start."""
    cause, part = (error.cause, "baseline: ") if isinstance(error, BaselineError) else (error, "")
    if isinstance(cause, EngineFailed) or (isinstance(cause, ConfigError) and prepared.subject != REFERENCE):
        found = record(prepared, "FAIL", engine, evidence, error=f"{part}{cause}", command=command)
        if isinstance(cause, EngineFailed):
            return structs.replace(found, verb=cause.verb, traceback=cause.traceback)
        return structs.replace(found, traceback=traceback_of(cause))
    frames = traceback.extract_tb(cause.__traceback__)
    places = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames[: -LAST_FRAMES - 1 : -1]]
    text = f"{part}{type(cause).__name__}: {cause}, in {' < '.join(places)}"
    state: CellState = "FAIL" if isinstance(cause, EngineBug | RequestError | NotFiniteError | Stalled) else "INFRA"
    found = record(prepared, state, engine, evidence, error=text, command=command)
    return structs.replace(found, verb=verb_of(cause), traceback=traceback_of(cause), first_red=first_red)


def lost(prepared: PreparedCell, reason: str) -> CellResult:
    """The INFRA record of a cell that has no result for a reason unrelated to the cell itself."""
    return record(prepared, "INFRA", error=f"the cell has no result: {reason}")


def record(
    prepared: PreparedCell,
    state: CellState,
    engine: RunningEngine | None = None,
    evidence: Mapping[str, int] | None = None,
    outcomes: Sequence[Outcome] = (),
    error: str | None = None,
    command: EngineCommand | None = None,
) -> CellResult:
    """The record of a cell, ReportError if it contradicts itself. engine: None if it did not start. evidence: counter
    increments during its requests. command: the translated cell, None for the reference engine."""
    cell, asked = prepared.cell, asdict(prepared.configuration) if command is None else requested(command)
    start = StartRecord(asked) if engine is None else start_record(asked, engine.resolved, engine.start_hash)
    made: CellResult = CellRecord(
        id=cell.id,
        state=state,
        start=start,
        axes=cell.values,
        repro=repro(cell.id, prepared.tier, prepared.seed, prepared.subject),
        expect=prepared.expectation,
        evidence=dict(evidence or {}),
        gates=tuple(_gate(outcome) for outcome in outcomes),
        error=error,
    )
    check_cell(made)
    return made


def start_record(asked: Mapping[str, Any], resolved: Mapping[str, Any], start_hash: str) -> StartRecord:
    """An engine start, whose reasons and rewrites are among the resolved values."""
    left = dict(resolved)
    reasons = tuple(ReasonRecord(**reason) for reason in left.pop("reasons", ()))
    rewrites = tuple(RewriteRecord(**rewrite) for rewrite in left.pop("rewrites", ()))
    return StartRecord(asked, left, start_hash, reasons, rewrites)


def requested(command: EngineCommand) -> dict[str, Any]:
    """A command's flags, and the checkpoints with their variant if it names any."""
    models = {"checkpoints": dict(command.checkpoints), "variant": command.variant} if command.checkpoints else {}
    return {**command.flags, **models}


def _gate(outcome: Outcome) -> GateResult:
    numbers = {name: "none" if number is None else number for name, number in outcome.numbers.items()}
    return GateResult(outcome.gate, outcome.state.value, numbers, outcome.interval, outcome.message, outcome.accept)


# Characters kept of a traceback's end, where the cause is.
MAX_TRACEBACK: Final = 20_000
LEDGER: Final = ("open", "reserve", "launch", "settle", "cancel", "donate", "hold", "resume", "close", "evict", "check")
# Path suffix of a file -> function -> verb; the innermost matching frame wins.
VERBS: Final[Mapping[str, Mapping[str, str]]] = {
    "engine/core/memory/ledger.py": {name: name for name in LEDGER},
    "engine/core/schedule/scheduler.py": {"plan": "schedule"},
    "engine/loop.py": {"_launch": "launch", "_collect": "collect", "_resolve": "resolve"},
    "engine/device_step.py": {"_prefill": "prefill"},
    "engine/spec/verify.py": {"verify": "verify"},
    "engine/api.py": {"__init__": "start", "add": "add"},
    "matrix/subjects/in_process.py": {"start_engine": "start", "generate": "generate"},
}
# Hooks of any drafter, wherever it is defined.
HOOKS: Final = ("prime", "propose", "absorb")


def verb_of(error: BaseException) -> str:
    """The verb at fault, "" if no frame of the traceback is one."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.name in HOOKS:
            return frame.name
        for path, verbs in VERBS.items():
            if Path(frame.filename).as_posix().endswith(path) and frame.name in verbs:
                return verbs[frame.name]
    return ""


def traceback_of(error: BaseException) -> str:
    """The whole traceback with its causes, paths inside the packages from their root on."""
    text = "".join(TracebackException.from_exception(error).format()).replace(f"{HOME}/", "")
    return text if len(text) <= MAX_TRACEBACK else f"…{text[1 - MAX_TRACEBACK :]}"
