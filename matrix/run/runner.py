"""Running cells on a subject: one engine start per launch, a baseline beside each workload, every gate's verdict.

A subject that crashes is that cell's result and nobody else's: the next cell of the launch gets a fresh start.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from msgspec import structs

from specmatrix.engine.core.errors import ConfigError, EngineBug
from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.gates.config import ConfigGate
from specmatrix.matrix.gates.gate import Gate, Outcome, State
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.gates.session_baseline import twinned
from specmatrix.matrix.run.pending import unrun
from specmatrix.matrix.run.tiers import tier as find_tier
from specmatrix.matrix.subjects.protocol import Answer, Ask, Capability, Diverged, Run, Served, Session, Subject
from specmatrix.matrix.workloads.build import workload
from specmatrix.reports.schema import CellResult, CellState, GateResult, Reason, Rewrite, Start

LAST_FRAMES: Final = 3


@dataclass(slots=True)
class Runner:
    """Runs cells on one subject. Keeps the session of the last launch and the baselines of every workload.

    workload: the asks of a cell for a seed. gates: judge in this order. refusal: judges a launch that was refused
    (with the error) or should have been (with None). divergence: judges ranks that cannot go on, as they differ.
    tier, stage: what the records say.
    """

    subject: Subject
    seed: int
    workload: Callable[[Cell, int], tuple[Ask, ...]] = workload
    gates: Sequence[Gate] = GATES
    refusal: Callable[[Cell, ConfigError | None], Outcome] = ConfigGate().judge_refusal
    divergence: Callable[[Cell, Agreement | None], Outcome] = RanksGate().judge_agreement
    tier: str = "cpu"
    stage: str = "pr"
    _launch: tuple[str, ...] | None = None
    _session: Session | None = None
    _plain: dict[Cell, Session] = field(default_factory=dict)
    _baselines: dict[tuple[Cell, tuple[Ask, ...]], Run] = field(default_factory=dict)
    _served: tuple[Served, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs that the tier gives to a cell."""
        return find_tier(self.tier).gpus

    def run_launch(self, cells: Iterable[Cell]) -> Iterator[CellResult]:
        """The records of cells that share a launch, as they come."""
        for cell in cells:
            yield self.run_cell(cell)
        self.close()

    def run_cell(self, cell: Cell) -> CellResult:
        """The record of one cell. Cells of one launch that follow each other share its session."""
        start = perf_counter()
        record = unrun(cell, self.tier, self.seed)
        try:
            record = self._judged(cell, record)
        except Exception as error:  # A crash of the subject is this cell's result; the other cells go on.
            self._drop()
            record = _crashed(record, error)
        return structs.replace(record, seconds=perf_counter() - start)

    def close(self) -> None:
        """End the current launch; baselines stay."""
        if self._session is not None:
            self._session.close()
        self._drop()

    def _drop(self) -> None:
        self._launch = self._session = None
        self._served = ()

    def _judged(self, cell: Cell, record: CellResult) -> CellResult:
        try:
            session = self._started(cell)
        except ConfigError as error:
            return _ended(record, [self.refusal(cell, error)])
        try:
            return self._run(cell, record, session)
        except Diverged as found:
            # Ranks that differ have no answers to judge.
            self._drop()
            return _ended(_configured(record, session), [self.divergence(cell, found.agreement)])

    def _run(self, cell: Cell, record: CellResult, session: Session) -> CellResult:
        record = _configured(record, session)
        if record.expect == "refused":
            return _ended(record, [self.refusal(cell, None)])
        asks = self.workload(cell, self.seed)
        run = drive(session, asks, self.subject.capabilities, self._served)
        self._served = run.served
        baseline = self._baseline(cell.canonical, asks)
        if twinned(cell):
            run = replace(run, twin=self._baseline(cell.twin, asks))
        outcomes = [self._verdict(gate, cell, run, baseline) for gate in self.gates if gate.applies(cell)]
        return _ended(structs.replace(record, evidence=dict(run.witness)), outcomes)

    def _started(self, cell: Cell) -> Session:
        if self._session is None or self._launch != cell.launch_key:
            self.close()
            self._session = self.subject.launch(asked(cell, self.gpus))
            self._launch = cell.launch_key
        return self._session

    def _verdict(self, gate: Gate, cell: Cell, run: Run, baseline: Run) -> Outcome:
        lacking = sorted(gate.needs - self.subject.capabilities)
        if lacking:
            message = f"subject {self.subject.name} does not show {', '.join(lacking)}"
            return Outcome(gate.name, State.NOT_MEASURED, message=message)
        return gate.judge(cell, run, baseline)

    def _baseline(self, plainest: Cell, asks: Sequence[Ask]) -> Run:
        """The same asks, none aborted, in one of the plainest launches; once per process."""
        plain = whole(asks)
        if (plainest, plain) not in self._baselines:
            # A session that crashes is not asked again.
            session = self._plain.pop(plainest, None) or self.subject.launch(asked(plainest, self.gpus))
            self._baselines[plainest, plain] = drive(session, plain, self.subject.capabilities)
            if plainest.algorithm == "none":
                self._plain[plainest] = session
            else:  # Few cells share a drafter of one shape, and each session holds memory.
                session.close()
        return self._baselines[plainest, plain]


def reference_runner(seed: int, tier: str = "cpu", stage: str = "pr") -> Runner:
    """The reference engine, in this process or in one for each rank, judged by every gate."""
    # It imports torch, which who only plans or collects cells need not wait for.
    from specmatrix.matrix.subjects.tensor_parallel import RankedSubject

    return Runner(RankedSubject(), seed, tier=tier, stage=stage)


def drive(
    session: Session, asks: Sequence[Ask], capabilities: frozenset[Capability], history: Sequence[Served] = ()
) -> Run:
    """Run asks on a session, and take down what it witnessed meanwhile (differences of its counters).

    history: what the session had served already.
    """
    before = session.counters()
    traces = Capability.TRACE in capabilities
    earlier = session.trace() if traces else None
    start = perf_counter()
    answers = session.generate(asks)
    seconds = perf_counter() - start
    both = list(zip(asks, answers, strict=True))
    kept = [(ask, answer) for ask, answer in both if ask.refused is None]
    witness = {name: count - before.get(name, 0) for name, count in session.counters().items()}
    journal = session.journal() if Capability.JOURNAL in capabilities else None
    return Run(
        tuple(ask for ask, _ in kept),
        tuple(answer for _, answer in kept),
        session.resolved,
        session.readback(),
        witness,
        session.memory(),
        journal,
        seconds,
        session.trace() if traces else None,
        earlier,
        () if journal is None else (*history, *served(kept)),
        tuple((ask, answer.refusal) for ask, answer in both if ask.refused is not None),
        session.ranks() if Capability.RANKS in capabilities else None,
    )


def served(answered: Iterable[tuple[Ask, Answer]]) -> Iterator[Served]:
    """The requests of a workload; turns of a streaming session share its first one's account, if they got so far."""
    accounts: dict[str, int] = {}
    for ask, answer in answered:
        if answer.refusal:
            continue
        account = rid = int(answer.meta_info["id"])
        if ask.session is not None and ask.session.streaming:
            account = accounts.setdefault(ask.session.id, rid)
            if ask.abort_after == 0 and not answer.output_ids and not answer.cached_tokens:
                continue
        tokens = (*answer.prompt_ids, *answer.output_ids)
        yield Served(answer.name, rid, account, tokens, len(answer.prompt_ids), answer.retractions)


def whole(asks: Sequence[Ask]) -> tuple[Ask, ...]:
    """The baseline's form of a workload: none aborted or refused, histories sent again; greedy asks show two tokens, to
    tell ties."""
    refused = {ask.name for ask in asks if ask.refused is not None}
    plain = []
    for ask in asks:
        if ask.name in refused:
            continue
        shown = ask.top_logprobs if ask.temperature else max(2, ask.top_logprobs)
        session = None if ask.session is None else replace(ask.session, resend=True)
        after = tuple(name for name in ask.after if name not in refused)
        ask = replace(ask, abort_after=None, closes_after=None, top_logprobs=shown, session=session, after=after)
        plain.append(ask)
    return tuple(plain)


def _configured(record: CellResult, session: Session) -> CellResult:
    resolved: dict[str, Any] = dict(session.resolved)
    reasons: Iterable[Mapping[str, Any]] = resolved.pop("reasons", ())
    rewrites: Iterable[Mapping[str, Any]] = resolved.pop("rewrites", ())
    start = Start(
        record.requested,
        resolved,
        session.launch_hash,
        tuple(Reason(**reason) for reason in reasons),
        tuple(Rewrite(**rewrite) for rewrite in rewrites),
    )
    return structs.replace(record, start=start)


def _ended(record: CellResult, outcomes: Sequence[Outcome]) -> CellResult:
    """The record with its gates and the state that follows: no gate, no proof."""
    states = {outcome.state for outcome in outcomes}
    state: CellState = "PASS"
    if State.FAIL in states:
        state = "FAIL"
    elif State.NOT_MEASURED in states or not outcomes:
        state = "NOT MEASURED"
    error = None if outcomes else "no gate judged this cell"
    return structs.replace(record, state=state, gates=tuple(_gate(outcome) for outcome in outcomes), error=error)


def _gate(outcome: Outcome) -> GateResult:
    numbers = {name: "none" if number is None else number for name, number in outcome.numbers.items()}
    return GateResult(outcome.gate, outcome.state.value, numbers, outcome.interval, outcome.message)


def _crashed(record: CellResult, error: Exception) -> CellResult:
    """A law that the engine itself saw broken is a verdict; any other crash proves nothing about the cell."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames[: -LAST_FRAMES - 1 : -1]]
    part = "the baseline: " if any(frame.name == Runner._baseline.__name__ for frame in frames) else ""
    text = f"{part}{type(error).__name__}: {error}, in {' < '.join(places)}"
    return structs.replace(record, state="FAIL" if isinstance(error, EngineBug) else "INFRA", error=text)
