"""The overhead of a cell besides the engine: its workload, readback, gates, and report record."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from specmatrix.benchmarks.metric import Metric, of, red
from specmatrix.benchmarks.overhead import CallTimer
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.reports.store import ReportWriter

NAME: Final = "harness_overhead_per_cell"
GOAL: Final = 0.05
WINDOWS: Final = 5
# Consecutive cells share engine starts; every second one still covers all drafters and modes.
EVERY: Final = 2


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


def measure() -> Metric:
    """The harness's share of the time of the chosen cells."""
    return share(chosen(), WINDOWS)


def chosen() -> list[Cell]:
    """Every second one-process cell of stage pr, in the order of a run."""
    return [cell for cell in order(of_gpus(stage_cells("pr"), 0)) if cell.ranks == 1][::EVERY]


def share(cells: Sequence[Cell], windows: int) -> Metric:
    """The harness's share of CPU time for cells on the reference engine, per window.

    Red if any cell is. Baseline runs count as engine time, in the cell that first needs them.
    """
    subject = TimedSubject()
    runner = Runner(subject, seed=0)
    shares: list[float] = []
    reds: list[str] = []
    size = -(-len(cells) // windows)
    with (
        tempfile.TemporaryDirectory() as folder,
        ReportWriter(Path(folder), run_header("cpu", "pr", 0, GATES)) as report,
    ):
        for first in range(0, len(cells), size):
            inside, start = subject.clock.seconds, time.process_time()
            for cell in cells[first : first + size]:
                record = runner.run_cell(cell)
                report.write(record)
                reds += [cell.id] if record.state != "PASS" else []
            total = time.process_time() - start
            shares.append(1 - (subject.clock.seconds - inside) / total)
        runner.close()
    if reds:
        return red(NAME, GOAL, f"{len(reds)} of {len(cells)} cells are red, first {reds[0]}")
    note = f"{len(cells)} cells with all their gates, {len(shares)} windows; CPU time, so without disk waits"
    return of(NAME, shares, GOAL, 0.0, "lower", note)
