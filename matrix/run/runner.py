"""Runs cells on a subject: prepare, start, run, judge, record.

Consecutive cells with the same start key share an engine start. A crash is the result of the cell in which it happened;
the next cell gets a new engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final

from msgspec import structs

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.errors import ConfigError, is_interrupt
from specmatrix.extras import missing_extra
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import STARTS
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.gates.config import ConfigGate, nearest_first
from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import Gate, Outcome, OwnGate, State
from specmatrix.matrix.gates.occurrences import proven
from specmatrix.matrix.gates.oracle import OracleGate, in_half
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.gates.registry import all_gates, applied_gates
from specmatrix.matrix.gates.same_texts import SameTexts
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.gates.session import has_session_baseline
from specmatrix.matrix.run.explain import TRACE_SECONDS, Explain, explained
from specmatrix.matrix.run.failing_request import crashed_request, failing_request
from specmatrix.matrix.run.provenance import BaselineError, crashed, judged, record, with_outcome
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.run.running_cells import judges
from specmatrix.matrix.run.waivers import waive
from specmatrix.matrix.subjects import protocol
from specmatrix.matrix.subjects.engine_process import EngineProcess, start_engine
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.protocol import EngineCommand, Run, RunningEngine, Served, Stalled, Subject, Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.predicted import RESOLVED_SHAPE
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, Workload, prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.schema import RED_STATES, CellResult, FailingRequest, WaiverRule

UNJUDGED: Final = "no gate that applies to the subject compares the cell's answers"
# Maximum number of baseline engines kept in their own processes: one of vLLM's takes 1.6 GB.
KEPT: Final = 2


@dataclass(slots=True)
class Baselines:
    """Baseline runs, each performed once per process.

    oracle: compares them with the oracle, None for the reference engine's. engines: engines without a drafter, kept for
    other workloads of the same cell and command, the last one used at the end. runs: result of each. starts: number of
    engine starts so far.
    """

    subject: Subject
    oracle: OracleGate | None = None
    engines: dict[tuple[Cell, str], RunningEngine] = field(default_factory=dict)
    runs: dict[tuple[Cell, tuple[RequestSpec, ...]], Run | BaselineError] = field(default_factory=dict)
    starts: int = 0

    def run(self, plain: PreparedCell) -> Run:
        """The run of one of the baselines of a PreparedCell. BaselineError if it crashes or crashed before."""
        key = plain.cell, plain.requests
        if key not in self.runs:
            try:
                self.runs[key] = self._run(plain)
            except Exception as error:
                if is_interrupt(error):
                    raise
                self.runs[key] = BaselineError(error)
        found = self.runs[key]
        if isinstance(found, BaselineError):
            raise found from found.cause
        return found

    def _start(self, command: EngineCommand) -> RunningEngine:
        processes = [(key, engine) for key, engine in self.engines.items() if isinstance(engine, EngineProcess)]
        for key, engine in processes[: len(processes) + 1 - KEPT]:
            del self.engines[key]
            engine.stop()
        self.starts += 1
        return start_engine(self.subject, command)

    def _run(self, plain: PreparedCell) -> Run:
        command = self.subject.translate(plain)
        if isinstance(command, Unsupported):
            raise ConfigError(f"{self.subject.name} does not support the cell without speculation: {command.reason}")
        # A foreign engine's flags may follow from its requests.
        key = plain.cell, repr(replace(command, asks=()))
        # Removed while it runs, so that an engine that crashes is not reused.
        engine = self.engines.pop(key, None) or self._start(command)
        try:
            run = run_requests(engine, plain.requests, self.subject.profile.capabilities, command=command)
            if self.oracle is not None:
                run = replace(run, resumed=resumed(engine, command, plain, run, self.oracle))
        except BaseException:
            if isinstance(engine, EngineProcess):
                engine.stop()
            raise
        if plain.cell.algorithm == "none":
            self.engines[key] = engine
        else:  # Few cells share such an engine, and each one holds memory.
            engine.close()
        return run


@dataclass(slots=True)
class Runner:
    """Runs cells on one subject.

    workload: the requests of a cell for a seed. gates: in the order in which they judge. refusal: judges a start that
    was refused (with the error) or should have been (with None). divergence: judges ranks that stopped because they
    diverged. stall: judges an engine that does not end. tier: of the records. waivers: of the user's tree. explain: the
    cells that run a second time with a trace; "draft": red ones, for TRACE_SECONDS in all, where only the draft
    of the broken round is kept. timed: green cells measure their speed, on `starts` engine starts,
    None for the usual number. engine: the running engine, of the last cell. baselines: runs so far.
    """

    subject: Subject
    seed: int
    workload: Workload = workload
    gates: Sequence[Gate] = field(default_factory=all_gates)
    refusal: Callable[[PreparedCell, ConfigError | None], Outcome] = ConfigGate().judge_refusal
    divergence: Callable[[PreparedCell, Agreement | None], Outcome] = RanksGate().judge_agreement
    stall: Callable[[Stalled], Outcome] = ScheduleGate().judge_stall
    tier: str = "cpu"
    waivers: Sequence[WaiverRule] = ()
    explain: Explain = "none"
    timed: bool = False
    starts: int | None = None
    engine: RunningEngine | None = field(default=None, init=False)
    baselines: Baselines = field(init=False)
    _command: EngineCommand | None = field(default=None, init=False)
    _version: str | None = field(default=None, init=False)
    _served: tuple[Served, ...] = field(default=(), init=False)
    _texts: SameTexts = field(default_factory=SameTexts, init=False)
    _counted: Mapping[str, int] = field(default_factory=dict, init=False)
    _starts: int = field(default=0, init=False)
    _trace_left: float = field(default=TRACE_SECONDS, init=False)

    def __post_init__(self) -> None:
        oracle = next((gate for gate in self.gates if isinstance(gate, OracleGate)), None)
        self.baselines = Baselines(self.subject, oracle)

    def run_cell(self, cell: Cell) -> CellResult:
        """The record of one cell, on the previous cell's engine if both share a start. ConfigError if it is impossible
        or redundant."""
        began, before = perf_counter(), self._starts + self.baselines.starts
        prepared = prepare(cell, self.tier, self.seed, self.workload, self.subject.name)
        command: EngineCommand | None = None
        try:
            found = translated(self.subject, prepared)
            if isinstance(found, Unsupported):
                result = record(prepared, "UNSUPPORTED", error=found.reason)
            else:
                command = found
                result = self._texts.judged(self._judged(prepared, command))
            if self.timed and result.state == "PASS" and prepared.expectation != "refused":
                result = with_outcome(result, self._speed(prepared))
        except BaseException as error:
            # A crash of the subject is this cell's result and the other cells go on; a time limit is its caller's.
            if not isinstance(error, Exception) or is_interrupt(error):
                self._drop()
                raise
            result = crashed(prepared, error, command, self.engine, *self._interrupted(prepared))
            self._drop()
        red, before_trace = result.state in RED_STATES, perf_counter()
        if self.explain == "every" or (self.explain == "red" and red):
            result = explained(result, self.subject, prepared)
        elif self.explain == "draft" and red and before_trace - began < self._trace_left:
            result = structs.replace(explained(result, self.subject, prepared), timeline=None)
            self._trace_left -= perf_counter() - before_trace
        result = waive(result, self.waivers, self.subject.name, self._version or self.subject.version())
        starts = self._starts + self.baselines.starts - before
        return structs.replace(result, seconds=perf_counter() - began, engine_starts=starts)

    def _judged(self, prepared: PreparedCell, command: EngineCommand) -> CellResult:
        if self.subject.profile.foreign and not judges(self._applied(prepared.cell), prepared.cell):
            return record(prepared, "UNSUPPORTED", error=UNJUDGED)
        try:
            engine = self._started(command)
        except ConfigError as error:
            if self.subject.profile.foreign:
                text = f"the engine does not run the cell: {error}"
                return record(prepared, "FAIL", error=text, command=command)
            return judged(prepared, [self.refusal(prepared, error)])
        if prepared.expectation == "refused":
            return judged(prepared, [self.refusal(prepared, None)], engine)
        self._counted = dict(engine.counters()) if self.subject.profile.in_process else {}
        try:
            history = self._served if self.subject.profile.restarts else None
            run = run_requests(engine, prepared.requests, self.subject.profile.capabilities, history, command)
        except protocol.Diverged as found:  # Diverged ranks return no answers to judge.
            self._drop()
            return judged(prepared, [self.divergence(prepared, found.agreement)], engine)
        except Stalled as stalled:  # It would never return answers; the next cell gets a new engine.
            self._drop()
            return judged(prepared, [self.stall(stalled)], engine)
        self._served = run.served
        if refused := [one for one in run.answers if one.refusal and self.subject.profile.in_process]:
            first = FailingRequest(FinishGate.name, refused[0].name, note=refused[0].refusal)
            outcome = Outcome(first.gate, State.FAIL, message=f"{first.request} was refused: {first.note}")
            return judged(prepared, [outcome], engine, run.evidence, command, first)
        if self.subject.profile.foreign:
            run = replace(run, resolved={**known_shape(prepared), **run.resolved})
            baseline = self._foreign_baseline(prepared, engine, command, run)
        else:
            baseline = self.baselines.run(prepared.baseline)
            if has_session_baseline(prepared.cell):
                run = replace(run, session_baseline=self.baselines.run(prepared.session_baseline))
        gates = self._applied(prepared.cell)
        excluded = self.subject.profile.excluded
        verdicts = [_verdict(gate, prepared, run, baseline, excluded) for gate in gates]
        assert [one.gate for one in verdicts] == [gate.name for gate in gates]
        outcomes = nearest_first(verdicts)
        return judged(prepared, outcomes, engine, run.evidence, command, failing_request(run, baseline, outcomes))

    def _interrupted(self, prepared: PreparedCell) -> tuple[dict[str, int], FailingRequest | None]:
        """The counter increments since the cell's start of an engine that raised, and the request in progress."""
        try:
            if self.engine is None or not self.engine.unfinished():
                return {}, None
            counted = self.engine.counters().items()  # one that fell is the failure itself
            evidence = {name: max(0, number - self._counted.get(name, 0)) for name, number in counted}
            return evidence, crashed_request(self.engine, prepared.requests)
        except Exception:  # a defective engine may contain anything; its error is recorded
            return {}, None

    def _foreign_baseline(self, prepared: PreparedCell, engine: RunningEngine, command: EngineCommand, run: Run) -> Run:
        """The baseline's run; if there is no baseline, the cell's own run, which the oracle then judges."""
        if self.subject.profile.has_baseline:
            plain = self.baselines.run(prepared.default_baseline)
            return replace(plain, resolved={**known_shape(prepared.default_baseline), **plain.resolved})
        if self.baselines.oracle is None:
            return run
        return replace(run, resumed=resumed(engine, command, prepared, run, self.baselines.oracle))

    def _speed(self, prepared: PreparedCell) -> Outcome:
        """The speed of a cell that passed, on engines of its own without the gates' observers."""
        # Imports torch, which a runner of another engine need not have.
        from specmatrix.matrix.run.speed import measure

        if self.subject.profile.foreign:  # The device may have no room for more.
            self.shut_down()
        starts = (self.starts or STARTS) if self.subject.profile.restarts else 1
        self._starts += 2 * starts
        return measure(self.subject, prepared, starts)

    def _started(self, command: EngineCommand) -> RunningEngine:
        start = replace(command, asks=())
        if self.engine is None or self._command != start:
            self.close()
            self._starts += 1
            self.engine = start_engine(self.subject, command)
            self._command = start
            self._version = self.engine.version if isinstance(self.engine, EngineProcess) else None
        return self.engine

    def _applied(self, cell: Cell) -> list[Gate]:
        """The gates that judge a cell. Gates that need a capability which the subject lacks are listed in the report's
        head instead. A CPU has no resources of a GPU."""
        gpus = find_tier(self.tier).gpus
        claims = self.subject.profile.capabilities - (set() if gpus else {protocol.Capability.RESOURCES})
        return [
            gate
            for gate in self.gates
            if gate.needs <= claims and gate.applies(cell if isinstance(gate, OwnGate) else cell.as_like)
        ]

    def close(self) -> None:
        """Close the running engine; baseline engines stay open."""
        if self.engine is not None:
            self.engine.close()
        self._drop()

    @property
    def device_lost(self) -> bool:
        """Whether a cell broke the CUDA context, as an illegal memory access does: every later call fails."""
        torch: Any = sys.modules.get("torch")
        try:
            if torch is not None and torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def shut_down(self) -> None:
        """End the running engine and the baselines', whatever state they are in."""
        self._drop()
        for engine in self.baselines.engines.values():
            if isinstance(engine, EngineProcess):
                engine.stop()
        self.baselines.engines.clear()

    def _drop(self) -> None:
        if isinstance(self.engine, EngineProcess):
            self.engine.stop()
        self._command = self.engine = None
        self._served = ()


def reference_runner(seed: int, tier: str = "cpu") -> Runner:
    """A runner for the reference engine, in this process or in one process per rank, with all gates."""
    # Imports torch, which planning and collection do not need.
    from specmatrix.matrix.subjects.tensor_parallel import RankedSubject

    return Runner(RankedSubject(), seed, tier=tier)


def subject_runner(
    name: str,
    seed: int,
    tier: str,
    waivers: Sequence[WaiverRule] = (),
    explain: Explain = "none",
    endpoint: Endpoint | None = None,
) -> Runner:
    """A runner for a subject by name, with the gates that apply to it. ConfigError if there is none. endpoint: of a
    subject over HTTP."""
    subject = load_subject(name, endpoint)
    return Runner(
        subject,
        seed,
        workload=subject.requests,
        gates=applied_gates(subject.profile).gates,
        tier=tier,
        waivers=waivers,
        explain=explain,
    )


def known_shape(prepared: PreparedCell) -> dict[str, Any]:
    """Resolved values that gates read and a foreign engine may not report: the draft's shape as resolved by the
    reference engine, and float32."""
    found = prepared.predicted
    shape = {} if isinstance(found, ConfigError) else {name: getattr(found, name) for name in RESOLVED_SHAPE}
    return {**shape, "dtype": "float32"}


def resumed(
    engine: RunningEngine, command: EngineCommand, plain: PreparedCell, run: Run, oracle: OracleGate
) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """Compute `Run.resumed` for a run without drafts, or one without such a baseline: rerun each request from the
    oracle's token wherever it deviates by a tie. Only requests without a history are in the oracle."""
    target, found = plain.cell.target, dict[str, list[tuple[int, tuple[int, ...]]]]()
    asks = {ask.id: ask for ask in command.asks if isinstance(ask, protocol.SubjectRequest)}
    answers, half = {answer.name: answer for answer in run.answers}, in_half(run)
    for request in run.requests:
        ask, start, got = asks.get(request.name), 0, answers[request.name].output_ids
        while (tie := oracle.next_tie(target, request, start, got, half)) is not None and ask is not None:
            start = tie + 1
            given = oracle.text(target, request)[:start]
            (again,) = engine.generate([replace(ask, input_ids=(*ask.input_ids, *given), after=(), session=None)])
            got = again.output_ids
            found.setdefault(request.name, []).append((start, got))
    return found


def _verdict(gate: Gate, prepared: PreparedCell, run: Run, baseline: Run, excluded: Mapping[str, str]) -> Outcome:
    """A gate's outcome; NOT MEASURED if it needs a package that is not installed, or if what its PASS rests on did not
    happen."""
    like = prepared if isinstance(gate, OwnGate) else prepared.as_like
    try:
        return proven(gate.judge(like, run, baseline), like, run, excluded)
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        return Outcome(gate.name, State.NOT_MEASURED, message=sentence)
