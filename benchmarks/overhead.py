"""Overhead besides model forwards: the rest of a decode step, and the harness's share of a cell.

CPU time of this single-threaded process, which other processes do not affect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, ParamSpec, TypeVar

from specmatrix.benchmarks.decoding import STEPS, engine, fixed, prompts, speculative
from specmatrix.benchmarks.metric import Metric, spread_of, unmeasured, wrong
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.reports.store import ReportWriter

BATCH: Final = 8
STEP_GOAL: Final = 0.25
WINDOWS: Final = 12
STEPS_PER_WINDOW: Final = 8
CELL: Final = "harness_overhead_per_cell"
CELL_GOAL: Final = 0.05
CELL_WINDOWS: Final = 5
# Consecutive cells share engine starts; every second one still covers all drafters and modes.
EVERY: Final = 2

P = ParamSpec("P")
T = TypeVar("T")


def steps() -> Iterator[Metric]:
    """The share of a decode step besides the forwards: planning, ledger, masks, sampling, relay, detokenisation."""
    yield share_of_step(engine(), f"work_outside_forwards_batch_{BATCH}_none")
    yield share_of_step(speculative("eagle3"), f"work_outside_forwards_batch_{BATCH}_eagle3_k{STEPS}")


class CallTimer:
    """CPU seconds spent inside wrapped calls; nested calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def wrap(self, call: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **rest: P.kwargs) -> T:
            if self._inside:
                return call(*args, **rest)
            self._inside = True
            start = time.process_time()
            try:
                return call(*args, **rest)
            finally:
                self.seconds += time.process_time() - start
                self._inside = False

        return timed


def share_of_step(llm: LLM, name: str) -> Metric:
    """Share of decode step time outside the models' `forward` and `logits`, which faster forwards make larger."""
    clock = CallTimer()
    executor: Any = llm.loop.executor
    models = [executor.target, *([executor.drafter.model] if executor.drafter.traits.drafts else [])]
    for model in models:
        model.forward, model.logits = clock.wrap(model.forward), clock.wrap(model.logits)
    # Every accepted token shortens the run, so request more tokens than the windows can use.
    needed = (WINDOWS + 2) * STEPS_PER_WINDOW * executor.drafter.nodes
    for prompt in prompts(llm, BATCH):
        llm.add(prompt, fixed(needed))
    for _ in range(STEPS_PER_WINDOW):
        llm.step()
    totals, others = [], []
    for _ in range(WINDOWS):
        inside, start = clock.seconds, time.process_time()
        for _ in range(STEPS_PER_WINDOW):
            llm.step()
        totals.append(time.process_time() - start)
        others.append(totals[-1] - (clock.seconds - inside))
    if len(llm.loop.scheduler.active) != BATCH:
        why = f"{len(llm.loop.scheduler.active)} of {BATCH} requests were left at the end"
        return unmeasured(name, STEP_GOAL, why)
    step, outside = (1000 * min(taken) / STEPS_PER_WINDOW for taken in (totals, others))
    note = f"at best a step takes {step:.2f} ms, {outside:.2f} ms of it outside forwards"
    shares = [other / total for other, total in zip(others, totals, strict=True)]
    return Metric(name, shares, STEP_GOAL, spread_of(totals), "lower", note)


class TimedSubject(ReferenceSubject):
    """The reference engine with a clock that measures start, generate and close; reading results from it counts as
    harness time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = CallTimer()
        self._start = self.clock.wrap(super().start_engine)

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine: Any = self._start(config)
        engine.generate, engine.close = self.clock.wrap(engine.generate), self.clock.wrap(engine.close)
        started: ReferenceEngine = engine
        return started


def measured_cells() -> list[Cell]:
    """Every second one-process cell of stage pr, in the order of a run."""
    return [cell for cell in order(of_gpus(stage_cells("pr"), 0)) if cell.ranks == 1][::EVERY]


def share_of_cell(cells: Sequence[Cell], windows: int = CELL_WINDOWS) -> Metric:
    """The harness's share of CPU time for cells on the reference engine, per window; red if any cell is.

    Baseline runs count as engine time, in the cell that first needs them.
    """
    subject = TimedSubject()
    runner = Runner(subject, seed=0)
    shares: list[float] = []
    reds: list[str] = []
    size = -(-len(cells) // windows)
    with TemporaryDirectory() as folder, ReportWriter(Path(folder), run_header("cpu", "pr", 0, GATES)) as report:
        for first in range(0, len(cells), size):
            inside, start = subject.clock.seconds, time.process_time()
            for cell in cells[first : first + size]:
                record = runner.run_cell(cell)
                report.write(record)
                reds += [cell.id] if record.state != "PASS" else []
            shares.append(1 - (subject.clock.seconds - inside) / (time.process_time() - start))
        runner.close()
    if reds:
        return wrong(CELL, CELL_GOAL, f"{len(reds)} of {len(cells)} cells are red, first {reds[0]}")
    note = f"{len(cells)} cells with all their gates, {len(shares)} windows; CPU time, so without disk waits"
    return Metric(CELL, shares, CELL_GOAL, 0.0, "lower", note)
