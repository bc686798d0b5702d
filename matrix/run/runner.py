"""Runs cells on a subject: prepare, start, run, judge, record.

Consecutive cells with the same start key share an engine start. A crash is the result of the cell in which it happened;
the next cell gets a new engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from msgspec import structs

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.config import ConfigGate
from specmatrix.matrix.gates.gate import Gate, Outcome, State
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.gates.session_baseline import has_session_baseline
from specmatrix.matrix.run.prepared_cell import PreparedCell, Workload, prepare
from specmatrix.matrix.run.record import BaselineError, crashed, judged, record
from specmatrix.matrix.subjects.protocol import (
    Answer,
    Capability,
    Diverged,
    EngineCommand,
    RequestSpec,
    Run,
    RunningEngine,
    Served,
    Subject,
    Unsupported,
)
from specmatrix.matrix.workloads.build import workload
from specmatrix.reports.schema import CellResult


@dataclass(slots=True)
class Baselines:
    """Baseline runs, each performed once per process.

    engines: engines without a drafter, kept for other workloads of the same start.
    """

    subject: Subject
    engines: dict[Cell, RunningEngine] = field(default_factory=dict)
    runs: dict[tuple[Cell, tuple[RequestSpec, ...]], Run] = field(default_factory=dict)

    def run(self, plain: PreparedCell) -> Run:
        """The run of `PreparedCell.baseline` or `PreparedCell.session_baseline`. BaselineError if it crashes."""
        key = plain.cell, plain.requests
        if key not in self.runs:
            try:
                self.runs[key] = self._run(plain)
            except Exception as error:
                raise BaselineError(error) from error
        return self.runs[key]

    def _run(self, plain: PreparedCell) -> Run:
        # Removed while it runs, so that an engine that crashes is not reused.
        engine = self.engines.pop(plain.cell, None)
        if engine is None:
            command = self.subject.translate(plain)
            if isinstance(command, Unsupported):
                raise ConfigError(f"{self.subject.name} does not support the baseline: {command.reason}")
            engine = self.subject.start(command)
        run = drive(engine, plain.requests, self.subject.profile.capabilities)
        if plain.cell.algorithm == "none":
            self.engines[plain.cell] = engine
        else:  # Few cells share such an engine, and each holds memory.
            engine.close()
        return run


@dataclass(slots=True)
class Runner:
    """Runs cells on one subject.

    workload: the requests of a cell for a seed. gates: in the order in which they judge. refusal: judges a start that
    was refused (with the error) or should have been (with None). divergence: judges ranks that stopped because they
    diverged. tier: of the records. engine: the running engine, of the last cell. baselines: runs so far.
    """

    subject: Subject
    seed: int
    workload: Workload = workload
    gates: Sequence[Gate] = GATES
    refusal: Callable[[PreparedCell, ConfigError | None], Outcome] = ConfigGate().judge_refusal
    divergence: Callable[[PreparedCell, Agreement | None], Outcome] = RanksGate().judge_agreement
    tier: str = "cpu"
    engine: RunningEngine | None = field(default=None, init=False)
    baselines: Baselines = field(init=False)
    _start_key: tuple[str, ...] | None = field(default=None, init=False)
    _served: tuple[Served, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.baselines = Baselines(self.subject)

    def run_start(self, cells: Iterable[Cell]) -> Iterator[CellResult]:
        """The records of cells that share an engine start, as they finish."""
        for cell in cells:
            yield self.run_cell(cell)
        self.close()

    def run_cell(self, cell: Cell) -> CellResult:
        """The record of one cell, on the previous cell's engine if both share a start. ConfigError if it is impossible
        or redundant."""
        began = perf_counter()
        prepared = prepare(cell, self.tier, self.seed, self.workload)
        try:
            result = self._judged(prepared)
        except Exception as error:  # A crash of the subject is this cell's result; the other cells go on.
            self._drop()
            result = crashed(prepared, error)
        return structs.replace(result, seconds=perf_counter() - began)

    def _judged(self, prepared: PreparedCell) -> CellResult:
        command = self.subject.translate(prepared)
        if isinstance(command, Unsupported):
            return record(prepared, "UNSUPPORTED", error=command.reason)
        try:
            engine = self._started(prepared, command)
        except ConfigError as error:
            return judged(prepared, [self.refusal(prepared, error)])
        if prepared.expectation == "refused":
            return judged(prepared, [self.refusal(prepared, None)], engine)
        try:
            run = drive(engine, prepared.requests, self.subject.profile.capabilities, self._served)
        except Diverged as found:  # Diverged ranks return no answers to judge.
            self._drop()
            return judged(prepared, [self.divergence(prepared, found.agreement)], engine)
        self._served = run.served
        baseline = self.baselines.run(prepared.baseline)
        if has_session_baseline(prepared.cell):
            run = replace(run, session_baseline=self.baselines.run(prepared.session_baseline))
        outcomes = [self._verdict(gate, prepared, run, baseline) for gate in self.gates if gate.applies(prepared.cell)]
        return judged(prepared, outcomes, engine, run.evidence)

    def _started(self, prepared: PreparedCell, command: EngineCommand) -> RunningEngine:
        if self.engine is None or self._start_key != prepared.cell.start_key:
            self.close()
            self.engine = self.subject.start(command)
            self._start_key = prepared.cell.start_key
        return self.engine

    def _verdict(self, gate: Gate, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        lacking = sorted(gate.needs - self.subject.profile.capabilities)
        if lacking:
            message = f"subject {self.subject.name} does not provide {', '.join(lacking)}"
            return Outcome(gate.name, State.NOT_MEASURED, message=message)
        return gate.judge(prepared, run, baseline)

    def close(self) -> None:
        """Close the running engine; baseline engines stay open."""
        if self.engine is not None:
            self.engine.close()
        self._drop()

    def _drop(self) -> None:
        self._start_key = self.engine = None
        self._served = ()


def reference_runner(seed: int, tier: str = "cpu") -> Runner:
    """A runner for the reference engine, in this process or in one process per rank, with all gates."""
    # Imports torch, which planning and collection do not need.
    from specmatrix.matrix.subjects.tensor_parallel import RankedSubject

    return Runner(RankedSubject(), seed, tier=tier)


def drive(
    engine: RunningEngine,
    requests: Sequence[RequestSpec],
    capabilities: frozenset[Capability],
    history: Sequence[Served] = (),
) -> Run:
    """Run requests on an engine. history: the requests that it has already served."""
    before = engine.counters()
    traces = Capability.TRACE in capabilities
    earlier = engine.trace() if traces else None
    start = perf_counter()
    answers = engine.generate(requests)
    seconds = perf_counter() - start
    both = list(zip(requests, answers, strict=True))
    kept = [(request, answer) for request, answer in both if request.refused is None]
    evidence = {name: count - before.get(name, 0) for name, count in engine.counters().items()}
    journal = engine.journal() if Capability.JOURNAL in capabilities else None
    return Run(
        requests=tuple(request for request, _ in kept),
        answers=tuple(answer for _, answer in kept),
        resolved=engine.resolved,
        readback=engine.readback(),
        evidence=evidence,
        memory=engine.memory(),
        journal=journal,
        seconds=seconds,
        trace=engine.trace() if traces else None,
        earlier=earlier,
        served=() if journal is None else (*history, *served(kept)),
        attempts=tuple((request, answer.refusal) for request, answer in both if request.refused is not None),
        ranks=engine.ranks() if Capability.RANKS in capabilities else None,
    )


def served(answered: Iterable[tuple[RequestSpec, Answer]]) -> Iterator[Served]:
    """The served requests of a workload; turns of a streaming session share the ledger account of its first turn."""
    accounts: dict[str, int] = {}
    for request, answer in answered:
        if answer.refusal:
            continue
        account = rid = int(answer.meta_info["id"])
        if request.session is not None and request.session.streaming:
            account = accounts.setdefault(request.session.id, rid)
            if request.abort_after == 0 and not answer.output_ids and not answer.cached_tokens:
                continue
        tokens = (*answer.prompt_ids, *answer.output_ids)
        yield Served(answer.name, rid, account, tokens, len(answer.prompt_ids), answer.retractions)
